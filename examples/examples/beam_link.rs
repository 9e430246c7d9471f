//! Aligning one link, measurement by measurement, as a user's radio would: what is received goes in, the next beam comes out.
//!
//! `cargo run --release --example beam_link -- [BUNDLE [SEED]]`
//!
//! The channel is simulated; behind every measurement both ends also say what they would decide if it were the last.

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};
use candle_models::beam::channel::noise_deviation;
use candle_models::beam::metrics::decibels;
use candle_models::beam::{Baseline, Beam, BeamConfig, Channels, Sounder, Trial};
use candle_models::bundle::Bundle;
use candle_models::device;
use candle_models::engine::{Engine, Options, Runner};
use candle_models::random::Random;
use std::sync::Arc;
use std::time::Instant;

const SNR_DB: f32 = 10.0;

fn main() -> Result<()> {
    // SAFETY: no other thread has been started yet. A single row is over before a second thread has woken up.
    unsafe { device::configure_threads(1) };
    let mut arguments = std::env::args().skip(1);
    let bundle = arguments.next().unwrap_or_else(|| "weights/beam-c3".to_owned());
    let seed = arguments.next().map_or(Ok(0), |n| n.parse()).context("SEED: expected a number")?;
    let opened = Bundle::open(&bundle).context("to train one: `candle-train beam --preset c3 --out run`, which leaves it in run/bundle");
    align(Beam::load(&opened?, &Device::Cpu)?, Random::new(seed))
}

fn align(model: Beam, random: Random) -> Result<()> {
    let config = model.config.clone();
    let (steps, width) = (config.measurements, config.transmit_width());
    let channels = Channels::generate(&config.channel, random.stream("channels"), 0, 1, steps)?;
    let mut noise = vec![0.0; 2 * steps];
    random.stream("noise").fill_normal(0, &mut noise);
    let deviation = noise_deviation(SNR_DB)?;

    let swept = model.swept()?.flatten_all()?.to_vec1::<f32>()?;
    let mut sounder = Sounder::new(&model, 0)?;
    let decision = Runner::new(Arc::new(model.decision), 1, 1)?;
    let base = model.base.map(|base| Runner::new(Arc::new(base), 1, 1)).transpose()?;
    let mut ends = Ends { config, swept, decision, base };
    let engine = Engine::start(Arc::new(model.user), &Options { sessions: 1, ..Options::default() })?;
    let mut session = engine.open()?;
    println!("step  beam      |y|^2  gain if it ended here  next beam");
    for t in 0..steps {
        let sent = &ends.swept[sounder.transmitted() * width..][..width];
        let [re, im] = channels.at(0, t).measure(sounder.beam(), sent);
        let received = [re + deviation * noise[2 * t], im + deviation * noise[2 * t + 1]];
        let index = sounder.transmitted();

        let start = Instant::now();
        sounder.observe(received, SNR_DB, session.floats_mut("features")?)?;
        session.step()?;
        sounder.follow(session.floats("beam")?)?;
        let us = start.elapsed().as_secs_f64() * 1e6;

        let (receive, transmit) = ends.decide(&sounder, session.floats("state")?)?;
        let (power, gain) = (received[0].hypot(received[1]).powi(2), channels.at(0, t).gain(&receive, &transmit));
        println!("{t:>4}  {index:>4} {:>7.1} dB {:>19.2} dB {us:>7.1} us", decibels(power), decibels(gain));
    }
    let trial = Trial { channels: &channels, step: steps - 1, snr_db: SNR_DB, noise: random.stream("genie"), first: 0 };
    let genie = Baseline::Genie.beams(&trial)?.gains(&channels, steps - 1)[0];
    println!("the best pair of beams, for one who knows the channel: {:.2} dB", decibels(genie));
    Ok(())
}

/// What decides behind the last measurement, at both ends of the link.
struct Ends {
    config: BeamConfig,
    swept: Vec<f32>,
    decision: Runner,
    base: Option<Runner>,
}

impl Ends {
    /// The beams to receive and to transmit with.
    fn decide(&mut self, sounder: &Sounder, state: &[f32]) -> Result<(Vec<f32>, Vec<f32>)> {
        self.decision.set_f32("measurements", sounder.measurements())?;
        self.decision.set_f32("state", state)?;
        if self.config.pursuit().is_some() {
            self.decision.set_f32("snr", &[sounder.snr()])?;
        }
        self.decision.step(&[true])?;
        let feedback = self.decision.floats("feedback", 0)?;
        let (index, receive) = self.config.keep(self.decision.floats("beam", 0)?, feedback)?;
        let Some(base) = &mut self.base else {
            let (best, width) = (index.context("scheme C1 names a beam")?, self.config.transmit_width());
            return Ok((receive, self.swept[best * width..][..width].to_vec()));
        };
        let feedback = Tensor::new(feedback, &Device::Cpu)?;
        base.set_f32("feedback", &self.config.feedback.send(&feedback)?.to_vec1::<f32>()?)?;
        base.step(&[true])?;
        let mut transmit = base.floats("beam", 0)?.to_vec();
        sounder.transmit(&mut transmit)?;
        Ok((receive, transmit))
    }
}

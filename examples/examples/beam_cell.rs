//! A base station that aligns many users with one sweep of its codebook: all of them measure the same beams.
//!
//! `cargo run --release --example beam_cell -- [BUNDLE [USERS]]`
//!
//! Channels are simulated. Every user has a session of one engine; the base station decodes what all of them say in one batch.

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};
use candle_models::beam::channel::noise_deviation;
use candle_models::beam::metrics::decibels;
use candle_models::beam::{Baseline, Beam, Beams, Channels, Sounder, Summary, Trial};
use candle_models::bundle::Bundle;
use candle_models::engine::{Engine, EngineError, Options, Runner, Session};
use candle_models::random::Random;
use std::sync::Arc;
use std::task::{Context as Task, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

const SNR_DB: f32 = 10.0;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let bundle = arguments.next().unwrap_or_else(|| "weights/beam-c3".to_owned());
    let users = arguments.next().map_or(Ok(200), |n| n.parse()).context("USERS: expected a number")?;
    let opened = Bundle::open(&bundle).context("to train one: `candle-train beam --preset c3 --out run`, which leaves it in run/bundle");
    align(Beam::load(&opened?, &Device::Cpu)?, users)
}

fn align(model: Beam, users: usize) -> Result<()> {
    let (config, random) = (model.config.clone(), Random::new(0));
    let (steps, width) = (config.measurements, config.transmit_width());
    let channels = Channels::generate(&config.channel, random.stream("channels"), 0, users, steps)?;
    let (swept, deviation) = (model.swept()?.flatten_all()?.to_vec1::<f32>()?, noise_deviation(SNR_DB)?);
    let mut sounders = vec![Sounder::new(&model, 0)?; users];
    let mut decision = Runner::new(Arc::new(model.decision), users, 1)?;
    let base = model.base.context("with scheme C1 users name a beam: the base station has no network")?;
    let mut base = Runner::new(Arc::new(base), users, 1)?;
    let options = Options { sessions: users, queue: users, max_batch: 64, ..Options::default() };
    let engine = Engine::start(Arc::new(model.user), &options)?;
    let mut sessions = (0..users).map(|_| engine.open()).collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    for t in 0..steps {
        let sent = &swept[t % config.codebook.count() * width..][..width];
        for (user, (sounder, session)) in sounders.iter_mut().zip(&mut sessions).enumerate() {
            let [re, im] = channels.at(user, t).measure(sounder.beam(), sent);
            let noise = |part: usize| deviation * random.stream("noise").at(user as u64).normal((2 * t + part) as u64);
            sounder.observe([re + noise(0), im + noise(1)], SNR_DB, session.floats_mut("features")?)?;
        }
        step_all(&mut sessions)?;
        for (sounder, session) in sounders.iter_mut().zip(&sessions) {
            sounder.follow(session.floats("beam")?)?;
        }
    }
    let swept_in = start.elapsed();
    // What each user decides is its own affair; here they do it side by side.
    for (user, (sounder, session)) in sounders.iter().zip(&sessions).enumerate() {
        decision.floats_mut("measurements", user)?.copy_from_slice(sounder.measurements());
        decision.floats_mut("state", user)?.copy_from_slice(session.floats("state")?);
        if config.pursuit().is_some() {
            decision.floats_mut("snr", user)?[0] = sounder.snr();
        }
    }
    decision.step(&vec![true; users])?;
    let (mut receive, mut feedback) = (Vec::new(), Vec::new());
    for user in 0..users {
        let said = decision.floats("feedback", user)?;
        receive.extend(config.keep(decision.floats("beam", user)?, said)?.1);
        feedback.extend_from_slice(said);
    }
    let feedback = Tensor::from_vec(feedback, (users, config.feedback_width()), &Device::Cpu)?;

    let decoding = Instant::now();
    let mut transmit = Vec::with_capacity(users * width);
    base.set_f32("feedback", &config.feedback.send(&feedback)?.flatten_all()?.to_vec1::<f32>()?)?;
    base.step(&vec![true; users])?;
    for (user, sounder) in sounders.iter().enumerate() {
        transmit.extend_from_slice(base.floats("beam", user)?);
        sounder.transmit(&mut transmit[user * width..])?;
    }
    let (decoded_in, aligned_in) = (decoding.elapsed(), start.elapsed());
    let gains = Beams { receive, transmit }.gains(&channels, steps - 1);
    let trial = Trial { channels: &channels, step: steps - 1, snr_db: SNR_DB, noise: random.stream("genie"), first: 0 };
    let genie = Baseline::Genie.beams(&trial)?.gains(&channels, steps - 1);
    for (user, (gain, best)) in gains.iter().zip(&genie).enumerate().take(8) {
        println!("user {user}: {:>6.2} dB of {:.2} that its channel has", decibels(*gain), decibels(*best));
    }
    let [found, best] = [Summary::new(&gains, SNR_DB)?, Summary::new(&genie, SNR_DB)?];
    println!("{users} users: {:.2} +- {:.2} dB (mean of dB; genie {:.2})", found.mean_db, found.error_db, best.mean_db);
    let rate = users as f64 / aligned_in.as_secs_f64();
    println!("sweep {swept_in:.1?}, decoding {decoded_in:.1?} in one batch; {rate:.0} users a second");
    Ok(())
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Asks for a step of every session before it waits for one: the engine makes batches of them.
fn step_all(sessions: &mut [Session]) -> Result<(), EngineError> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut steps: Vec<_> = sessions.iter_mut().map(|session| Box::pin(session.step_async())).collect();
    while !steps.is_empty() {
        let mut waiting = Vec::new();
        for mut step in steps {
            match step.as_mut().poll(&mut Task::from_waker(&waker)) {
                Poll::Pending => waiting.push(step),
                Poll::Ready(answer) => answer?,
            }
        }
        if !waiting.is_empty() {
            thread::park();
        }
        steps = waiting;
    }
    Ok(())
}

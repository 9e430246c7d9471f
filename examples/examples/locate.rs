//! From IQ to a position: an emitter is heard by seven receivers, their samples become features, and a network says where it may be.
//!
//! `cargo run --release --example locate -- [--bundle DIR] [--event N] [--svg FILE]`
//!
//! The event, its signals and its truth are drawn from a seed; the network has learnt from others.

use anyhow::{Context, Result, bail};
use candle_core::Device;
use candle_models::bundle::Bundle;
use candle_models::engine::{Engine, Options};
use candle_models::random::Random;
use candle_models::registry::Family;
use candle_models::rf::features::{Extractor, Form, summarise};
use candle_models::rf::geometry::Place;
use candle_models::rf::localiser::baselines::weighted_centroid;
use candle_models::rf::localiser::events::Events;
use candle_models::rf::localiser::{Heard, Mixture, UNIT_KM, map_svg, middle};
use candle_models::rf::synthesis::{Compatible, Reception};
use candle_models::rf::{Complex32, RfConfig, RfFamily};

/// Fifths of a second, as the features were made for.
const CHUNK: usize = 40_000;
/// Below this the network was told that a receiver hears nothing.
const LEAST_SNR: f64 = 3.0;

fn main() -> Result<()> {
    let (mut bundle, mut number, mut svg) = ("weights/localiser".to_owned(), 0, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--bundle" => bundle = value,
            "--event" => number = value.parse().with_context(|| format!("--event {value}"))?,
            "--svg" => svg = Some(value),
            _ => bail!("{argument}: expected --bundle DIR, --event N or --svg FILE"),
        }
    }
    let random = Random::new(2026).stream("example");
    let events = Events::default();
    let event = events.draw(random.stream("event").at(number));
    let (generator, mut extractor) = (Compatible::default(), Extractor::new(200e3, CHUNK, Form::Repaired)?);
    let (mut iq, mut heard) = (vec![Complex32::default(); generator.samples], Vec::new());
    for (i, truth) in event.receptions.iter().enumerate() {
        let Heard { receiver, power_dbm, snr_db, frequency_offset_hz } = *truth;
        generator.generate(random.stream("iq").at(number).at(i as u64), &Reception { frequency_offset_hz, power_dbm, snr_db }, &mut iq)?;
        let chunks: Vec<_> = iq.chunks(CHUNK).map(|chunk| extractor.extract(chunk)).collect::<candle_models::Result<_>>()?;
        // Means of four statistics each. The power of the samples is that of signal and noise together.
        let features = summarise(&chunks);
        let [rssi, snr, offset] = [0, 1, 3].map(|feature| features[4 * feature]);
        let signal = rssi - 10.0 * (1.0 + 10f64.powf(-snr / 10.0)).log10();
        println!(
            "receiver {i}: {signal:7.1} dBm, {snr:5.1} dB over the noise, at {offset:+8.3} Hz (in truth {power_dbm:.1}, {snr_db:.1}, {frequency_offset_hz:+.3})"
        );
        if snr >= LEAST_SNR {
            heard.push(Heard { receiver, power_dbm: signal, snr_db: snr, frequency_offset_hz: offset });
        }
    }

    let bundle = Bundle::open(bundle)?;
    let RfConfig::Localiser(config) = bundle.config()? else { bail!("{}: expected a localiser", bundle.dir().display()) };
    let (_, network) = RfFamily.load(&bundle, &Device::Cpu)?.pop().context("no network")?;
    let engine = Engine::start(network, &Options::default())?;
    let mut session = engine.open()?;
    let origin = middle(events.receivers());
    let (mut numbers, mut present) = (vec![0.0; session.floats_mut("receivers")?.len()], vec![0.0; config.receivers]);
    config.encode(&heard, &origin, &mut numbers, &mut present)?;
    session.set_f32("receivers", &numbers)?;
    session.set_f32("present", &present)?;
    session.step()?;
    let mixture = Mixture::of(session.floats("logits")?, session.floats("means")?, session.floats("factors")?)?;

    let found = origin.at_km(mixture.mean().map(|x| x * UNIT_KM));
    let say = |what: &str, place: &Place| {
        println!("{what}: {:.3} N {:.3} E, {:.1} km from the emitter", place.latitude, place.longitude, place.distance_km(&event.emitter));
    };
    println!("the emitter: {:.3} N {:.3} E, heard by {} receivers", event.emitter.latitude, event.emitter.longitude, heard.len());
    say("the network", &found);
    say("the receivers' middle, by what they hear", &weighted_centroid(&heard));
    if let Some(path) = svg {
        std::fs::write(&path, map_svg(&origin, &heard, &mixture, Some(&event.emitter))).context(path)?;
    }
    Ok(())
}

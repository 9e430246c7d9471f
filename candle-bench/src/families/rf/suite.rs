//! Signals of receivers and their features: seconds of IQ, and whole events of a data set.

use crate::case::{Case, Pass};
use crate::harness::{self, Measurement, Settings, Subject, Timed};
use crate::host::Host;
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use crate::target::{Limit, TargetRow};
use anyhow::{Result, ensure};
use candle_core::Device;
use candle_models::random::Random;
use candle_models::rf::Complex32;
use candle_models::rf::features::{COUNT, Extractor, Form};
use candle_models::rf::localiser::events::Events;
use candle_models::rf::synthesis::{Compatible, Reception};
use candle_train::rf::scenario::Scenario;
use rayon::prelude::*;
use std::hint::black_box;

/// Generated IQ, its features, and events of data sets, beside the limits of the project.
#[derive(clap::Args)]
pub struct RfBench {
    #[command(flatten)]
    common: Common,
    /// Seconds of IQ that are generated, and whose features are extracted, at a time for each thread.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seconds: usize,
    /// Seconds of IQ at a time on a GPU.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 256])]
    batches: Vec<usize>,
    #[command(flatten)]
    device: DeviceArgument,
}

/// Samples of a second and of a chunk.
const SAMPLES: usize = 200_000;
const CHUNK: usize = 40_000;
const RECEPTION: Reception = Reception { frequency_offset_hz: 37.5, power_dbm: -70.0, snr_db: 15.0 };

impl Suite for RfBench {
    const NAME: &'static str = "rf";
    const TITLE: &'static str = "Radio signals";
    type Row = TargetRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<TargetRow>) -> Result<()> {
        let settings = &self.common.settings;
        self.common.validate(&[&[self.seconds], &self.batches])?;
        let device = self.device.open()?.device;
        bench.begin(&settings.describe(), None);
        if device.is_cuda() {
            for &batch in &self.batches {
                let host = bench.host.clone();
                for row in on_gpu(&host, settings, batch, &device)? {
                    bench.add(&row);
                }
            }
            return Ok(());
        }
        for &threads in &self.common.threads {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
            let host = bench.host.clone();
            for row in pool.install(|| rows(&host, settings, [self.seconds * threads, threads]))? {
                bench.add(&row);
            }
        }
        Ok(())
    }
}

/// A second of IQ of a batch that stays on the device, without and with its features, which come to the host. A lone second may take what it may on a core of
/// a CPU.
fn on_gpu(host: &Host, settings: &Settings, batch: usize, device: &Device) -> Result<[TargetRow; 2]> {
    let (generator, receptions) = (Compatible::default(), vec![vec![RECEPTION; batch]]);
    let extractor = Extractor::new(SAMPLES as f64, CHUNK, Form::Compatible)?;
    let mut number = 0;
    let mut generate = || {
        number += 1;
        generator.generate_on(Random::new(1), number, &receptions, device).map(|(signals, _)| signals)
    };
    let generated = harness::measure(
        &mut Timed(Repeated(|| {
            let signals = generate()?;
            device.synchronize()?;
            drop(signals);
            Ok(())
        })),
        settings,
    )?;
    let extracted = harness::measure(
        &mut Timed(Repeated(|| {
            let chunks = generate()?.reshape((batch * SAMPLES / CHUNK, CHUNK, 2))?;
            extractor.extract_all(&chunks).map(|found| drop(black_box(found)))
        })),
        settings,
    )?;
    let case = Case::of("iq at 200 kHz", Pass::Window, [batch, SAMPLES, 1], "f32");
    let row = |what: &str, measured: &Measurement, alone: f64| {
        let limit = Limit::AtMost(if batch == 1 { alone } else { 0.1 });
        let each = measured.latency_us.p50 / 1e3 / batch as f64;
        TargetRow::new(host, case.clone(), what, (each, limit, "ms"), rate(batch as f64, measured, "seconds"))
    };
    Ok([
        row("a second of IQ on the GPU, as published", &generated, 4.4),
        row("a second of IQ on the GPU with its 5 x 18 features, as published", &extracted, 4.4 + 2.5),
    ])
}

/// What is measured of so many seconds at a time on so many threads.
fn rows(host: &Host, settings: &Settings, [seconds, threads]: [usize; 2]) -> Result<Vec<TargetRow>> {
    let case = Case::of("iq at 200 kHz", Pass::Window, [seconds, SAMPLES, threads], "f32");
    let row = |what: &str, figure: (f64, Limit, &str), evidence: String| TargetRow::new(host, case.clone(), what, figure, evidence);
    // Milliseconds of a second's worth on one thread.
    let each = |measured: &Measurement| measured.latency_us.p50 / 1e3 * threads as f64 / seconds as f64;
    let mut iq = vec![Complex32::default(); seconds * SAMPLES];
    let generator = Compatible::default();
    let receptions = vec![vec![RECEPTION; seconds]];
    let mut number = 0;
    let generated = harness::measure(
        &mut Timed(Repeated(|| {
            number += 1;
            generator.generate_all(Random::new(1), number, &receptions, &mut iq).map(drop)
        })),
        settings,
    )?;
    let mut rows = vec![row(
        "a second of IQ, as published",
        (each(&generated), Limit::AtMost(4.4), "ms"),
        rate(seconds as f64, &generated, "seconds"),
    )];
    let mut extracted = Vec::new();
    for (form, what) in [(Form::Compatible, "its 5 x 18 features, as published"), (Form::Repaired, "its 5 x 18 features, repaired")] {
        let extractor = Extractor::new(SAMPLES as f64, CHUNK, form)?;
        let measured = harness::measure(
            &mut Timed(Repeated(|| {
                let found: candle_models::Result<Vec<[f64; COUNT]>> =
                    iq.par_chunks(CHUNK).map_init(|| extractor.clone(), |own, chunk| own.extract(chunk)).collect();
                found.map(|found| drop(black_box(found)))
            })),
            settings,
        )?;
        rows.push(row(what, (each(&measured), Limit::AtMost(2.5), "ms"), rate(seconds as f64, &measured, "seconds")));
        extracted.push(each(&measured));
    }
    // Events of the published data set: seven receivers and a second each.
    let scenario = Scenario::preset("compatible")?;
    let (events, extractor) = (Events::default(), scenario.extractor()?);
    let receivers = events.receivers().len();
    let mut number = 0;
    let made = harness::measure(
        &mut Timed(Repeated(|| {
            number += threads as u64;
            let all = (number..number + threads as u64).into_par_iter();
            all.map_init(|| extractor.clone(), |own, event| scenario.row(&events, own, event).map(drop)).collect()
        })),
        settings,
    )?;
    let per_core = 1e6 / made.latency_us.p50;
    let parts = receivers as f64 * (rows[0].found + extracted[0]);
    let evidence = format!("{:.1} ms an event, of which {receivers} signals and their features take {parts:.1}", made.latency_us.p50 / 1e3);
    rows.push(row("events of a data set, a second and core", (per_core, Limit::AtLeast(100.0), "events"), evidence));
    ensure!(rows.iter().all(|row| row.found.is_finite()), "a figure is no number");
    Ok(rows)
}

fn rate(count: f64, measured: &Measurement, what: &str) -> String {
    format!("{:.0} {what} a second", count * 1e6 / measured.latency_us.p50)
}

/// Something that is done again and again.
struct Repeated<F>(F);

impl<F: FnMut() -> candle_models::Result<()>> Subject for Repeated<F> {
    fn run(&mut self) -> Result<()> {
        Ok((self.0)()?)
    }
}

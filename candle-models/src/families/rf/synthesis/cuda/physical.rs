//! Signals of emitters, paths and receivers on an NVIDIA GPU: launches of `physical.cu`. What is to be sent comes from the CPU's threads: filters and symbols are
//! one after the other there, and one event's are heard by all of its receivers.

use super::super::delay::Interpolator;
use super::super::fading::{Parts, WAVES};
use super::super::impairments::Amplifier;
use super::super::{Physical, Reception, Truth, physical};
use super::{PART, THREADS, table};
use crate::cuda::{self, Gpu, Kernel, Source};
use crate::ops::cuda::philox::Address;
use crate::random::Random;
use crate::rf::Complex32;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;
use rustfft::num_complex::Complex64;

static SOURCE: Source = Source { name: "rf_physical", text: include_str!("physical.cu") };
/// Over the parts of what is sent, and over those of what is heard.
const SEND: [Kernel; 3] = [
    Kernel { source: &SOURCE, name: "measure" },
    Kernel { source: &SOURCE, name: "amplify" },
    Kernel { source: &SOURCE, name: "modulate" },
];
const RECEIVE: [Kernel; 2] = [Kernel { source: &SOURCE, name: "arrive" }, Kernel { source: &SOURCE, name: "take" }];

/// As in `physical.cu`, like the structs below; none of them has padding.
#[repr(C)]
#[derive(Clone, Copy)]
struct Walk {
    steps: Address,
    deviation: f64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Emitter {
    line: Walk,
    step: u64,
    half_drift: f64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Path {
    begin: f64,
    step: f64,
    waves: [[f64; 2]; WAVES],
    seen: [f64; 2],
    fixed: [f32; 2],
    seen_weight: f32,
    wave_weight: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Receiver {
    line: Walk,
    noise: Address,
    step: u64,
    watts: f64,
    deviation: f64,
    full_scale: f64,
    quantum: f64,
    alpha: [f32; 2],
    beta: [f32; 2],
    constant: [f32; 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Signals {
    emitters: u64,
    receivers: u64,
    paths: u64,
    weights: u64,
    content: u64,
    signal: u64,
    out: u64,
    loudness: u64,
    powers: u64,
    walks: u64,
    clipped: u64,
    sent: u64,
    samples: u64,
    rate: f64,
    margin: f64,
    drive: f32,
    smoothness: f32,
    amplifier: u32,
    receivers_each: u32,
    paths_each: u32,
    sent_parts: u32,
    parts: u32,
    unused: u32,
}

impl From<&physical::Walk> for Walk {
    fn from(walk: &physical::Walk) -> Self {
        Self { steps: walk.random.into(), deviation: walk.deviation }
    }
}

impl From<&physical::Path> for Path {
    fn from(path: &physical::Path) -> Self {
        let Parts { fixed, seen, scattered } = path.gain.parts();
        let weight = |weight: f64| (path.amplitude * weight) as f32;
        Self {
            begin: path.begin,
            step: path.step,
            waves: scattered.1,
            seen: seen.1,
            fixed: parts(fixed * path.amplitude),
            seen_weight: weight(seen.0),
            wave_weight: weight(scattered.0),
        }
    }
}

impl From<&physical::Receiver> for Receiver {
    fn from(receiver: &physical::Receiver) -> Self {
        let converter = receiver.converter.as_ref();
        Self {
            line: (&receiver.line).into(),
            noise: receiver.noise.into(),
            step: receiver.oscillator.step(),
            watts: receiver.watts,
            deviation: receiver.deviation,
            full_scale: converter.map_or(0.0, |converter| converter.full_scale),
            quantum: converter.map_or(0.0, |converter| converter.step),
            alpha: parts(receiver.imbalance.alpha),
            beta: parts(receiver.imbalance.beta),
            constant: parts(receiver.constant),
        }
    }
}

fn parts(x: Complex64) -> [f32; 2] {
    [x.re as f32, x.im as f32]
}

/// Signals `[events, receivers, samples, 2]` of events that have at least one receiver, as many in each, and what is true of them.
pub(in super::super) fn generate(
    config: &Physical,
    random: Random,
    first: u64,
    receptions: &[Vec<Reception>],
    delays: &[Vec<f64>],
    device: &Device,
) -> Result<(Tensor, Vec<Vec<Truth>>)> {
    let (sent, samples) = (config.sent_samples(), config.samples);
    let (events, receivers_each, paths_each) = (receptions.len(), receptions.first().map_or(0, Vec::len), 1 + config.echoes);
    let signals = events * receivers_each;
    let (sent_parts, parts) = (sent.div_ceil(PART), samples.div_ceil(PART));
    if (events * sent_parts).max(signals * parts) > i32::MAX as usize {
        return Err(Error::Input(format!("{signals} signals of {samples} samples are too many for one launch")));
    }
    let (mut emitters, mut receivers, mut paths, mut truths, mut margin) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0);
    for (event, (receptions, delays)) in receptions.iter().zip(delays).enumerate() {
        let random = random.at(first + event as u64);
        let emitter = config.emitter(random, receptions.first().map_or(0.0, |first| first.frequency_offset_hz));
        let each = receptions.iter().zip(delays).enumerate();
        let drawn = each.map(|(i, (reception, delay))| config.receiver(random.at(i as u64), &emitter, reception, *delay));
        let drawn: Vec<physical::Receiver> = drawn.collect();
        margin = emitter.margin;
        emitters.push(Emitter { line: (&emitter.line).into(), step: emitter.carrier.step(), half_drift: 0.5 * emitter.drift });
        receivers.extend(drawn.iter().map(Receiver::from));
        paths.extend(drawn.iter().flat_map(|receiver| &receiver.paths).map(Path::from));
        truths.push(drawn.into_iter().map(|receiver| receiver.truth).collect::<Vec<_>>());
    }
    let content: Vec<Vec<Complex32>> = (0..events)
        .into_par_iter()
        .map(|event| config.content.generate(random.at(first + event as u64).stream("content"), config.sample_rate, sent))
        .collect();
    let content = content.concat();
    // SAFETY: two f32 have no padding.
    let content = unsafe { table(&content, device)? };
    // SAFETY: each has numbers of 8 bytes before an even count of those of 4.
    let (emitters, receivers, paths) = unsafe { (table(&emitters, device)?, table(&receivers, device)?, table(&paths, device)?) };
    let weights = Tensor::new(Interpolator::shared().weights(), device)?;
    let gpu = Gpu::of(cuda::device_of(&weights)?)?;
    let new = |count: usize, dtype: DType| cuda::empty(count, dtype, gpu.device());
    let sums = (events * sent_parts).max(signals * parts);
    let (signal, out) = (new(events * sent * 2, DType::F32)?, new(signals * samples * 2, DType::F32)?);
    let (loudness, powers, walks) = (new(events * sent_parts, DType::F64)?, new(sums, DType::F64)?, new(sums, DType::F64)?);
    let clipped = new(signals * parts, DType::U32)?;
    let (amplifier, smoothness) = match config.amplifier {
        None => (0, 1.0),
        Some(Amplifier::Rapp { smoothness, .. }) => (1, smoothness),
        Some(Amplifier::Saleh { .. }) => (2, 1.0),
    };
    let args = Signals {
        emitters: cuda::address(&emitters)?,
        receivers: cuda::address(&receivers)?,
        paths: cuda::address(&paths)?,
        weights: cuda::address(&weights)?,
        content: cuda::address(&content)?,
        signal: cuda::address(&signal)?,
        out: cuda::address(&out)?,
        loudness: cuda::address(&loudness)?,
        powers: cuda::address(&powers)?,
        walks: cuda::address(&walks)?,
        clipped: cuda::address(&clipped)?,
        sent: sent as u64,
        samples: samples as u64,
        rate: config.sample_rate,
        margin: margin as f64,
        drive: config.amplifier.as_ref().map_or(1.0, Amplifier::drive) as f32,
        smoothness: smoothness as f32,
        amplifier,
        receivers_each: receivers_each as u32,
        paths_each: paths_each as u32,
        sent_parts: sent_parts as u32,
        parts: parts as u32,
        unused: 0,
    };
    let stages = SEND.map(|kernel| (kernel, events * sent_parts)).into_iter().chain(RECEIVE.map(|kernel| (kernel, signals * parts)));
    for (kernel, blocks) in stages {
        // SAFETY: the buffers have a part for every block, and live until the last stage is behind them in the stream.
        unsafe { gpu.launch(kernel, None, ((blocks, 1, 1), THREADS, 0), &args)? };
    }
    let clipped = clipped.reshape((signals, parts))?.to_vec2::<u32>()?;
    for (truth, clipped) in truths.iter_mut().flatten().zip(clipped) {
        truth.clipped = clipped.into_iter().map(u64::from).sum();
    }
    Ok((out.reshape((events, receivers_each, samples, 2))?, truths))
}

//! The published generator on an NVIDIA GPU: launches of `compatible.cu`.

use super::super::compatible::{Drawn, MOST_ECHOES, PHASE};
use super::super::{Compatible, Labels, Reception, receivers};
use super::{PART, THREADS, table};
use crate::cuda::{self, Gpu, Kernel, Source};
use crate::ops::cuda::philox::Address;
use crate::random::Random;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};

static SOURCE: Source = Source { name: "rf_compatible", text: include_str!("compatible.cu") };
const STAGES: [Kernel; 3] =
    [Kernel { source: &SOURCE, name: "carrier" }, Kernel { source: &SOURCE, name: "arrive" }, Kernel { source: &SOURCE, name: "finish" }];

/// `Signal` in `compatible.cu`, without padding.
#[repr(C)]
#[derive(Clone, Copy)]
struct Signal {
    phase: Address,
    noise: Address,
    step: u64,
    amplitudes: u64,
    gains: [[f32; 2]; MOST_ECHOES],
    delays: [u32; MOST_ECHOES],
    echoes: u32,
    hold: u32,
    count: u32,
    watts: f32,
    deviation: f32,
}

/// `Signals` in `compatible.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Signals {
    signals: u64,
    clean: u64,
    out: u64,
    powers: u64,
    samples: u64,
    parts: u32,
    turn: f32,
}

/// Signals `[events, receivers, samples, 2]` and what is true of them.
pub(in super::super) fn generate(
    generator: &Compatible,
    random: Random,
    first: u64,
    receptions: &[Vec<Reception>],
    device: &Device,
) -> Result<(Tensor, Vec<Vec<Labels>>)> {
    generator.validate()?;
    let (receivers, samples) = (receivers(receptions)?, generator.samples);
    let shape = (receptions.len(), receivers, samples, 2);
    let (mut signals, mut amplitudes, mut labels) = (Vec::new(), Vec::new(), Vec::with_capacity(receptions.len()));
    for (event, receptions) in receptions.iter().enumerate() {
        let mut of_event = Vec::with_capacity(receivers);
        for (receiver, reception) in receptions.iter().enumerate() {
            reception.validate(generator.sample_rate)?;
            let random = random.at(first + event as u64).at(receiver as u64);
            let Drawn { echoes, hold, amplitudes: own, carrier, watts, deviation } = generator.drawn(random, reception);
            let mut signal = Signal {
                phase: random.stream("phase").into(),
                noise: random.stream("noise").into(),
                step: carrier.step(),
                // Where they begin; an address once they have one.
                amplitudes: amplitudes.len() as u64,
                gains: [[0.0; 2]; MOST_ECHOES],
                delays: [0; MOST_ECHOES],
                echoes: echoes.len() as u32,
                hold: hold as u32,
                count: own.len() as u32,
                watts: watts as f32,
                deviation: deviation as f32,
            };
            for (i, echo) in echoes.iter().enumerate() {
                (signal.gains[i], signal.delays[i]) = ([echo.gain.re, echo.gain.im], echo.samples as u32);
            }
            amplitudes.extend_from_slice(&own);
            signals.push(signal);
            of_event.push(Labels { reception: *reception, echoes: echoes.len(), amplitudes: own });
        }
        labels.push(of_event);
    }
    if signals.is_empty() {
        return Ok((Tensor::zeros(shape, DType::F32, device)?, labels));
    }
    let parts = samples.div_ceil(PART);
    if signals.len() * parts > i32::MAX as usize {
        return Err(Error::Input(format!("{} signals of {samples} samples are too many for one launch", signals.len())));
    }
    let amplitudes = Tensor::new(amplitudes, device)?;
    let base = cuda::address(&amplitudes)?;
    signals.iter_mut().for_each(|signal| signal.amplitudes = base + 4 * signal.amplitudes);
    // SAFETY: `Signal` has no padding: two addresses of 24 bytes, two numbers of 8, and 14 of 4.
    let table = unsafe { table(&signals, device)? };
    let gpu = Gpu::of(cuda::device_of(&amplitudes)?)?;
    let new = |count: usize| cuda::empty(count, DType::F32, gpu.device());
    let (clean, out, powers) = (new(signals.len() * samples * 2)?, new(signals.len() * samples * 2)?, new(signals.len() * parts)?);
    let args = Signals {
        signals: cuda::address(&table)?,
        clean: cuda::address(&clean)?,
        out: cuda::address(&out)?,
        powers: cuda::address(&powers)?,
        samples: samples as u64,
        parts: parts as u32,
        turn: PHASE / 10.0 / std::f32::consts::TAU * 4_294_967_296.0,
    };
    for stage in STAGES {
        // SAFETY: the buffers have a part for every block, and live until the last stage is behind them in the stream.
        unsafe { gpu.launch(stage, None, ((signals.len() * parts, 1, 1), THREADS, 0), &args)? };
    }
    Ok((out.reshape(shape)?, labels))
}

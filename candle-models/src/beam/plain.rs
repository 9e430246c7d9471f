//! The closed loop and the gain in plain tensor operations, on any device and in any dtype: what the fused forms are held against, and
//! what a GPU runs.
//!
//! Complex numbers are pairs of real tensors.

use super::config::View;
use super::episode::{Episodes, Sensing};
use super::user::{ANTENNA_SCALE, SCALE};
use super::{Beam, Channels};
use crate::exec::tensors::TensorExecutor;
use crate::recurrent::Recurrent;
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::{D, DType, Device, Tensor};

/// A complex tensor.
#[derive(Clone)]
struct Complex {
    re: Tensor,
    im: Tensor,
}

impl Complex {
    /// From pairs `[..., 2]`.
    fn from_pairs(x: &Tensor) -> Result<Self> {
        Ok(Self { re: x.narrow(D::Minus1, 0, 1)?.squeeze(D::Minus1)?, im: x.narrow(D::Minus1, 1, 1)?.squeeze(D::Minus1)? })
    }

    /// From rows `[..., 2 N]`.
    fn from_rows(x: &Tensor) -> Result<Self> {
        let mut dims = x.dims().to_vec();
        let width = dims.pop().unwrap_or(0);
        dims.extend([width / 2, 2]);
        Self::from_pairs(&x.reshape(dims)?)
    }

    /// To rows `[B, 2 N]`, from `[B, N]`.
    fn to_rows(&self) -> Result<Tensor> {
        Ok(Tensor::stack(&[&self.re, &self.im], 2)?.flatten_from(1)?)
    }

    fn conj(&self) -> Result<Self> {
        Ok(Self { re: self.re.clone(), im: self.im.neg()? })
    }

    fn mul(&self, other: &Self) -> Result<Self> {
        Ok(Self {
            re: (self.re.broadcast_mul(&other.re)? - self.im.broadcast_mul(&other.im)?)?,
            im: (self.re.broadcast_mul(&other.im)? + self.im.broadcast_mul(&other.re)?)?,
        })
    }

    fn add(&self, other: &Self) -> Result<Self> {
        Ok(Self { re: (&self.re + &other.re)?, im: (&self.im + &other.im)? })
    }

    fn sum(&self, axis: usize) -> Result<Self> {
        Ok(Self { re: self.re.sum(axis)?, im: self.im.sum(axis)? })
    }

    fn unsqueeze(&self, axis: usize) -> Result<Self> {
        Ok(Self { re: self.re.unsqueeze(axis)?, im: self.im.unsqueeze(axis)? })
    }

    fn power(&self) -> Result<Tensor> {
        Ok((self.re.sqr()? + self.im.sqr()?)?)
    }
}

/// Channels at one step as tensors: gains `[B, L]`, receive `[B, L, N_RX]`, transmit `[B, L, N_TX]`.
struct Paths {
    gains: Complex,
    receive: Complex,
    transmit: Complex,
}

impl Paths {
    fn new(channels: &Channels, step: usize, dtype: DType, device: &Device) -> Result<Self> {
        let (batch, steps, paths) = (channels.batch(), channels.steps(), channels.paths());
        let step = if steps == 1 { 0 } else { step };
        let tensor = |values: &[f32], elements: usize| -> Result<Complex> {
            let all = Tensor::from_slice(values, (batch, steps, paths * elements, 2), &Device::Cpu)?;
            let one = all.narrow(1, step, 1)?.reshape((batch, paths, elements, 2))?;
            Complex::from_pairs(&one.to_device(device)?.to_dtype(dtype)?)
        };
        let gains = tensor(channels.gains(), 1)?;
        Ok(Self {
            gains: Complex { re: gains.re.squeeze(2)?, im: gains.im.squeeze(2)? },
            receive: tensor(channels.receive(), channels.receive_elements())?,
            transmit: tensor(channels.transmit(), channels.transmit_elements())?,
        })
    }

    /// `H f = sum of alpha a_rx (a_tx^H f)`, `[B, N_RX]` from `[B, N_TX]`.
    fn received(&self, f: &Complex) -> Result<Complex> {
        let projected = self.transmit.conj()?.mul(&f.unsqueeze(1)?)?.sum(2)?;
        self.receive.mul(&self.gains.mul(&projected)?.unsqueeze(2)?)?.sum(1)
    }

    /// `H^H w = sum of alpha* a_tx (a_rx^H w)`, `[B, N_TX]` from `[B, N_RX]`.
    fn returned(&self, w: &Complex) -> Result<Complex> {
        let projected = self.receive.conj()?.mul(&w.unsqueeze(1)?)?.sum(2)?;
        self.transmit.mul(&self.gains.conj()?.mul(&projected)?.unsqueeze(2)?)?.sum(1)
    }
}

/// What is put through the loop in place of what was measured.
fn sensed(sensing: Sensing, signal: Complex, noise: &Complex) -> Result<Complex> {
    match sensing {
        Sensing::Measurements => signal.add(noise),
        Sensing::Noise => Ok(noise.clone()),
        Sensing::Nothing => Ok(Complex { re: noise.re.zeros_like()?, im: noise.im.zeros_like()? }),
        Sensing::Shuffled => Err(Error::Input("measurements of other channels are for the host".to_owned())),
    }
}

/// [`Beam::measure`].
pub(super) fn measure(model: &Beam, episodes: &Episodes, codebook: &Tensor, first: &Tensor) -> Result<Tensor> {
    let (config, device, dtype) = (&model.config, codebook.device(), codebook.dtype());
    let (batch, steps, beams) = (episodes.channels.batch(), episodes.measurements, config.codebook.count());
    let column = |values: Vec<f32>| Ok::<_, Error>(Tensor::from_vec(values, (batch, 1), &Device::Cpu)?.to_device(device)?.to_dtype(dtype)?);
    let noise: Vec<f32> = (0..batch).map(|i| episodes.noise(i)).collect::<Result<Vec<_>>>()?.concat();
    let noise = Complex::from_pairs(&Tensor::from_vec(noise, (batch, steps, 2), &Device::Cpu)?.to_device(device)?.to_dtype(dtype)?)?;
    let snr = column(episodes.snr_db.iter().map(|snr| snr / 30.0).collect())?;
    let resets = vec![false; batch];
    let signature = model.user.signature();
    let state = |spec: &crate::tensors::TensorSpec| {
        let shape: Vec<usize> = std::iter::once(batch).chain(spec.shape.iter().copied()).collect();
        Ok(Tensor::zeros(shape, dtype, device)?)
    };
    let mut states = signature.state.iter().map(state).collect::<Result<Vec<_>>>()?;
    let mut beam = first.broadcast_as((batch, config.receive_width()))?.contiguous()?;
    let (mut turn, mut behind) = (None, None);
    let mut record = Tensor::zeros((batch, config.record()), dtype, device)?;
    for t in 0..steps {
        let index: Vec<u32> = episodes.start.iter().map(|s| (s + t as u32) % beams as u32).collect();
        let (numbers, index) = (index.clone(), Tensor::from_vec(index, batch, &Device::Cpu)?.to_device(device)?);
        let sent = Complex::from_rows(&codebook.index_select(&index, 0)?)?;
        let paths = Paths::new(&episodes.channels, t, dtype, device)?;
        let w = Complex::from_rows(&beam)?;
        let signal = w.conj()?.mul(&paths.received(&sent)?)?.sum(1)?;
        let at = |x: &Tensor| Ok::<_, Error>(x.narrow(1, t, 1)?.squeeze(1)?);
        let y = sensed(episodes.sensing, signal, &Complex { re: at(&noise.re)?, im: at(&noise.im)? })?;
        if turn.is_none() && config.view == View::Antennas {
            let modulus = (y.power()? + 1e-30)?.sqrt()?;
            turn = Some(Complex { re: (&y.re / &modulus)?, im: (y.im.neg()? / &modulus)? });
        }
        let turned = turn.as_ref().map_or_else(|| Ok(y.clone()), |turn| y.mul(turn))?;
        let y = Complex { re: turned.re.unsqueeze(1)?, im: turned.im.unsqueeze(1)? };
        let scaled = Complex { re: (&y.re * f64::from(SCALE))?, im: (&y.im * f64::from(SCALE))? };
        let seen = (y.mul(&w)?.to_rows()? * f64::from(ANTENNA_SCALE))?;
        // Every row has places of its own for what it saw.
        let slots = config.record() / seen.dim(1)?;
        let number = |start: &u32| config.seen(*start, t) as u32;
        let slot = |start: &u32| (config.record_place(t, number(start) as usize).start / config.receive_width()) as u32;
        let place = one_of(episodes.start.iter().map(slot).collect(), slots, codebook)?.unsqueeze(2)?;
        record = (record + place.broadcast_mul(&seen.unsqueeze(1)?)?.flatten_from(1)?)?;
        let beam_number = one_of(numbers.clone(), beams, codebook)?;
        let place_seen = one_of(episodes.start.iter().map(number).collect(), beams, codebook)?;
        let features = match config.view {
            View::Scalars => Tensor::cat(&[y.to_rows()?, column(numbers.iter().map(|n| *n as f32).collect())?], 1)?,
            View::Antennas => {
                let antennas = place_seen.unsqueeze(2)?.broadcast_mul(&seen.unsqueeze(1)?)?.flatten_from(1)?;
                let progress = column(vec![t as f32 / (config.measurements.max(2) - 1) as f32; batch])?;
                Tensor::cat(&[antennas, scaled.to_rows()?, beam_number, progress, snr.clone()], 1)?
            }
        };
        let inputs: NamedTensors = [("features".to_owned(), features.unsqueeze(1)?)].into_iter().collect();
        let mut executor = TensorExecutor::new(&inputs, &resets, states, device).through_time();
        let [next, trunk] = model.user.pass(&mut executor)?;
        states = executor.into_states();
        behind = Some(trunk);
        beam = config.receive_weights.rounded(&next)?;
    }
    let Some(state) = behind else { return Err(Error::Input("an episode without measurements".to_owned())) };
    Ok(Tensor::cat(&[record, state], 1)?)
}

/// For each row a one in its column of `columns`, in the dtype and on the device of `like`.
fn one_of(column: Vec<u32>, columns: usize, like: &Tensor) -> Result<Tensor> {
    let rows = column.len();
    let mut values = vec![0f32; rows * columns];
    column.iter().enumerate().for_each(|(row, column)| values[row * columns + *column as usize] = 1.0);
    Ok(Tensor::from_vec(values, (rows, columns), &Device::Cpu)?.to_device(like.device())?.to_dtype(like.dtype())?)
}

/// [`super::alignment::alignment`].
pub(super) fn alignment(channels: &Channels, step: usize, w: &Tensor, f: &Tensor) -> Result<Tensor> {
    let paths = Paths::new(channels, step, w.dtype(), w.device())?;
    let (w, f) = (Complex::from_rows(w)?, Complex::from_rows(f)?);
    let (received, returned) = (paths.received(&f)?, paths.returned(&w)?);
    let gain = w.conj()?.mul(&received)?.sum(1)?.power()?;
    let found = Tensor::stack(&[&gain, &returned.power()?.sum(1)?, &received.power()?.sum(1)?], 1)?;
    let steps = channels.steps();
    let step = if steps == 1 { 0 } else { step };
    let inverse = |power: &[f32]| if power[step] > 0.0 { 1.0 / power[step] } else { 0.0 };
    let inverse: Vec<f32> = channels.power().chunks_exact(steps).map(inverse).collect();
    let inverse = Tensor::from_vec(inverse, (channels.batch(), 1), &Device::Cpu)?.to_device(found.device())?.to_dtype(found.dtype())?;
    Ok(found.broadcast_mul(&inverse)?)
}

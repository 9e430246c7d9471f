//! The closed loop and the gain in plain tensor operations, on any device and in any dtype: what the fused forms are held against, and
//! what a GPU runs of loops that have no fused form there.
//!
//! Complex numbers are pairs of real ones, and whatever is done to them is a product of real matrices: on a GPU one launch each, where the
//! operations element by element would be ten. A factor `c` takes a row of pairs `[.., 2]` to `[.., 2] M(c)`, the conjugate factor has
//! the transposed matrix. What does not depend on the loop is computed and moved to the device ahead of it, for all steps at once.

use super::alignment::inverse;
use super::config::View;
use super::episode::{Episodes, Sensing};
use super::user::{ANTENNA_SCALE, SCALE, SNR_SCALE};
use super::{Beam, Channels};
use crate::exec::tensors::TensorExecutor;
use crate::recurrent::Recurrent;
use crate::signature::TensorSpec;
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::{D, DType, Device, Shape, Tensor};
use std::ops::Range;

/// Where tensors are made, and of what.
struct Place<'a> {
    device: &'a Device,
    dtype: DType,
}

impl<'a> Place<'a> {
    fn of(like: &'a Tensor) -> Self {
        Self { device: like.device(), dtype: like.dtype() }
    }

    fn tensor(&self, values: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
        Ok(Tensor::from_vec(values, shape.into(), &Device::Cpu)?.to_device(self.device)?.to_dtype(self.dtype)?)
    }

    /// Rows of `columns` numbers, a one in the column that `rows` says for each and zeros elsewhere.
    fn ones(&self, columns: usize, rows: impl Iterator<Item = usize>) -> Result<Tensor> {
        let values: Vec<f32> = rows.flat_map(|one| (0..columns).map(move |i| f32::from(u8::from(i == one)))).collect();
        let rows = values.len() / columns;
        self.tensor(values, (rows, columns))
    }
}

/// The matrices `[2, 4]` that take pairs `c` to matrices of 2 x 2, row by row.
struct Forms {
    /// `M(c)`: a row of pairs times it is the product of its numbers with `c`.
    factor: Tensor,
    /// `M(c*)`.
    conjugate: Tensor,
    /// A row of pairs `w` times it is `w* c`.
    probe: Tensor,
}

impl Forms {
    fn new(place: &Place) -> Result<Self> {
        let form = |re: [f32; 4], im: [f32; 4]| place.tensor([re, im].concat(), (2, 4));
        Ok(Self {
            factor: form([1., 0., 0., 1.], [0., 1., -1., 0.])?,
            conjugate: form([1., 0., 0., 1.], [0., -1., 1., 0.])?,
            probe: form([1., 0., 0., -1.], [0., 1., 1., 0.])?,
        })
    }
}

/// The matrices `[pairs, 2, 2]` of pairs that lie in any shape.
fn formed(pairs: &Tensor, form: &Tensor) -> Result<Tensor> {
    Ok(pairs.reshape(((), 2))?.matmul(form)?.reshape(((), 2, 2))?)
}

/// Channels at some of their steps as real matrices: rows of pairs `f` times both is `H f`.
struct Links {
    /// `a_tx^H f` of every path, `[links, 2 N_TX, 2 L]`.
    transmit: Tensor,
    /// The sum of `alpha a_rx` over the paths, `[links, 2 L, 2 N_RX]`.
    receive: Tensor,
}

impl Links {
    /// The links of each channel at `steps`, one behind the other; a channel that is kept for a single step has one.
    fn new(channels: &Channels, steps: Range<usize>, place: &Place, forms: &Forms) -> Result<Self> {
        let (batch, kept, paths) = (channels.batch(), channels.steps(), channels.paths());
        let steps = if kept == 1 { 0..1 } else { steps };
        let links = batch * steps.len();
        let tensor = |values: &[f32]| {
            let width = values.len() / (batch * kept);
            let some = |values: &[f32]| values[steps.start * width..steps.end * width].to_vec();
            place.tensor(values.chunks_exact(kept * width).flat_map(some).collect(), links * width)
        };
        // [link, path, element, in, out] to [link, element, in, path, out], and to [link, path, in, element, out].
        let transmit = formed(&tensor(channels.transmit())?, &forms.conjugate)?;
        let transmit = transmit.reshape((links, paths, (), 2))?.transpose(1, 2)?.reshape((links, (), 2 * paths))?;
        let receive = formed(&tensor(channels.receive())?, &forms.factor)?.reshape((links * paths, (), 2, 2))?.transpose(1, 2)?;
        let receive = formed(&tensor(channels.gains())?, &forms.factor)?.matmul(&receive.reshape((links * paths, 2, ()))?)?;
        Ok(Self { transmit, receive: receive.reshape((links, 2 * paths, ()))? })
    }

    /// `H f`, `[links, rows, 2 N_RX]` from `[links, rows, 2 N_TX]`.
    fn received(&self, f: &Tensor) -> Result<Tensor> {
        Ok(f.matmul(&self.transmit)?.matmul(&self.receive)?)
    }

    /// `H^H w`, `[links, rows, 2 N_TX]` from `[links, rows, 2 N_RX]`.
    fn returned(&self, w: &Tensor) -> Result<Tensor> {
        Ok(w.matmul(&self.receive.t()?)?.matmul(&self.transmit.t()?)?)
    }
}

/// `H_t f_t` of all steps, `[B, T, 2 N_RX]`, with gradients to the codebook.
pub(super) fn responses(model: &Beam, episodes: &Episodes, codebook: &Tensor) -> Result<Tensor> {
    let (config, place) = (&model.config, Place::of(codebook));
    let (steps, beams) = (episodes.measurements, config.codebook.count());
    let links = Links::new(&episodes.channels, 0..steps, &place, &Forms::new(&place)?)?;
    let sent = episodes.start.iter().flat_map(|start| (0..steps).map(move |t| config.sent(*start, t)));
    let sent = place.ones(beams, sent)?.matmul(codebook)?.reshape((links.transmit.dim(0)?, (), config.transmit_width()))?;
    Ok(links.received(&sent)?.reshape((episodes.channels.batch(), steps, config.receive_width()))?)
}

/// What a batch of episodes goes by, for all T steps ahead of the first.
struct Course {
    /// A row `w` times it is `w^H H_t f_t`, `[B, T, 2 N_RX, 2]`.
    probes: Tensor,
    /// `[T, B, 1, 2]`.
    noise: Tensor,
    /// A one in the place of the beam that the networks see, `[T, B, C, 1]`.
    seen: Tensor,
    /// What the network reads beside the measurement, `[T, B, ..]`.
    beside: Tensor,
    /// Which measurement stands in each place of the record, `[B, places, T]`.
    record: Tensor,
}

impl Course {
    fn new(model: &Beam, episodes: &Episodes, codebook: &Tensor, forms: &Forms) -> Result<Self> {
        let (config, place) = (&model.config, Place::of(codebook));
        let (batch, steps, beams) = (episodes.channels.batch(), episodes.measurements, config.codebook.count());
        let by_step = || (0..steps).flat_map(|t| episodes.start.iter().zip(&episodes.snr_db).map(move |(start, snr)| (t, *start, *snr)));
        let by_episode = || episodes.start.iter().flat_map(|start| (0..steps).map(move |t| (*start, t)));

        let responses = responses(model, episodes, codebook)?;
        let noise = (0..batch).map(|i| episodes.noise(i)).collect::<Result<Vec<_>>>()?;
        let noise = (0..steps).flat_map(|t| noise.iter().flat_map(move |noise| [noise[2 * t], noise[2 * t + 1]])).collect();
        let beside: Vec<f32> = match config.view {
            View::Scalars => by_step().map(|(t, start, _)| config.sent(start, t) as f32).collect(),
            View::Antennas => {
                let progress = |t: usize| t as f32 / (config.measurements.max(2) - 1) as f32;
                let row = |(t, start, snr)| {
                    let index = (0..beams).map(move |beam| f32::from(u8::from(beam == config.sent(start, t))));
                    index.chain([progress(t), snr / SNR_SCALE])
                };
                by_step().flat_map(row).collect()
            }
        };
        let places = config.record() / config.receive_width();
        let mut record = vec![0.0; batch * places * steps];
        for (row, (start, t)) in by_episode().enumerate() {
            let at = config.record_place(t, config.seen(start, t)).start / config.receive_width();
            record[(row / steps * places + at) * steps + t] = 1.0;
        }
        Ok(Self {
            probes: formed(&responses, &forms.probe)?.reshape((batch, steps, config.receive_width(), 2))?,
            noise: place.tensor(noise, (steps, batch, 1, 2))?,
            seen: place.ones(beams, by_step().map(|(t, start, _)| config.seen(start, t)))?.reshape((steps, batch, beams, 1))?,
            beside: place.tensor(beside, (steps, batch, beside_width(config.view, beams)))?,
            record: place.tensor(record, (batch, places, steps))?,
        })
    }

    /// What is received with beams `[B, 1, 2 N_RX]` in step `t`, `[B, 1, 2]`, or what takes its place.
    fn measured(&self, sensing: Sensing, t: usize, beam: &Tensor) -> Result<Tensor> {
        let noise = self.noise.get(t)?;
        match sensing {
            Sensing::Measurements => Ok((beam.matmul(&self.probes.narrow(1, t, 1)?.squeeze(1)?)? + noise)?),
            Sensing::Noise => Ok(noise),
            Sensing::Nothing => Ok(noise.zeros_like()?),
            Sensing::Shuffled => Err(Error::Input("measurements of other channels are for the host".to_owned())),
        }
    }
}

/// Numbers that the network reads beside the measurement: the beam's, or the beam as one of C, the progress and the SNR.
fn beside_width(view: View, beams: usize) -> usize {
    match view {
        View::Scalars => 1,
        View::Antennas => beams + 2,
    }
}

/// [`Beam::measure`].
pub(super) fn measure(model: &Beam, episodes: &Episodes, codebook: &Tensor, first: &Tensor) -> Result<Tensor> {
    let (config, place) = (&model.config, Place::of(codebook));
    let (batch, width) = (episodes.channels.batch(), config.receive_width());
    let forms = Forms::new(&place)?;
    let course = Course::new(model, episodes, codebook, &forms)?;
    let antennas = (&forms.factor * f64::from(ANTENNA_SCALE))?;
    let resets = vec![false; batch];
    let state = |spec: &TensorSpec| {
        let shape: Vec<usize> = std::iter::once(batch).chain(spec.shape.iter().copied()).collect();
        Ok(Tensor::zeros(shape, place.dtype, place.device)?)
    };
    let mut states = model.user.signature().state.iter().map(state).collect::<Result<Vec<_>>>()?;
    let mut beam = first.broadcast_as((batch, width))?.contiguous()?;
    let (mut turn, mut behind, mut record) = (None, None, Vec::with_capacity(episodes.measurements));
    for t in 0..episodes.measurements {
        let y = course.measured(episodes.sensing, t, &beam.unsqueeze(1)?)?;
        if turn.is_none() && config.view == View::Antennas {
            let modulus = (y.sqr()?.sum_keepdim(D::Minus1)? + 1e-30)?.sqrt()?;
            turn = Some(formed(&y.broadcast_div(&modulus)?, &forms.conjugate)?);
        }
        let y = turn.as_ref().map_or_else(|| Ok(y.clone()), |turn| y.matmul(turn))?;
        let seen = beam.reshape((batch, (), 2))?.matmul(&formed(&y, &antennas)?)?.reshape((batch, 1, width))?;
        let (y, beside) = (y.squeeze(1)?, course.beside.get(t)?);
        let features = match config.view {
            View::Scalars => Tensor::cat(&[y, beside], 1)?,
            View::Antennas => Tensor::cat(&[course.seen.get(t)?.matmul(&seen)?.flatten_from(1)?, (y * f64::from(SCALE))?, beside], 1)?,
        };
        record.push(seen);
        let inputs: NamedTensors = [("features".to_owned(), features.unsqueeze(1)?)].into_iter().collect();
        let mut executor = TensorExecutor::new(&inputs, &resets, states, place.device).through_time();
        let [next, trunk] = model.user.layers().forward(&mut executor)?;
        states = executor.into_states();
        // Networks may compute in a narrower dtype than the loop.
        behind = Some(trunk.to_dtype(place.dtype)?);
        beam = config.receive_weights.rounded(&next.to_dtype(place.dtype)?)?;
    }
    let Some(state) = behind else { return Err(Error::Input("an episode without measurements".to_owned())) };
    let record = course.record.matmul(&Tensor::cat(&record, 1)?)?.flatten_from(1)?;
    Ok(Tensor::cat(&[record, state], 1)?)
}

/// [`super::alignment::alignment`].
pub(super) fn alignment(channels: &Channels, step: usize, w: &Tensor, f: &Tensor) -> Result<Tensor> {
    let place = Place::of(w);
    let forms = Forms::new(&place)?;
    let links = Links::new(channels, step..step + 1, &place, &forms)?;
    let (w, f) = (w.unsqueeze(1)?, f.unsqueeze(1)?);
    let (received, returned) = (links.received(&f)?, links.returned(&w)?);
    let gain = w.matmul(&formed(&received, &forms.probe)?.reshape((channels.batch(), (), 2))?)?;
    let power = |x: &Tensor| x.sqr()?.sum(D::Minus1);
    let found = Tensor::cat(&[power(&gain)?, power(&returned)?, power(&received)?], 1)?;
    let inverses = |b| [inverse(channels.at(b, step).power); 3];
    Ok((found * place.tensor((0..channels.batch()).flat_map(inverses).collect(), (channels.batch(), 3))?)?)
}

//! An episode: T measurements in a closed loop, every beam chosen by what was measured before.
//!
//! Step t measures `y_t = w_t^H H_t f_t + n_t`, `f_t` being beam `(start + t) mod C` of the codebook, and gives `y_t` to the user's
//! network, which answers with `w_{t+1}`. The first beam `w_0` is a parameter. The phase of the first measurement is the reference of
//! all: a common phase of the channel changes nothing that the networks see.
//!
//! On the host the whole episode is one operation, forward and backward: blocks of rows go through all steps on one thread each
//! (`exec::tape`), so that threads meet once. On a GPU it is one operation as well, all rows in step (`beam::cuda`); what has no form
//! there, and everything in other dtypes, goes through plain tensor operations ([`super::plain`]).

use super::channel::noise_deviation;
use super::complex::{inner, product};
use super::config::View;
use super::user::{ANTENNA_SCALE, Observation, SCALE};
use super::{Beam, BeamConfig, Channels, within};
use crate::engine::Model;
use crate::exec::Target;
use crate::exec::program::Program;
use crate::exec::tape::{BLOCK, Differentiable, Gradients, Tape, Tapes};
use crate::ops::{add_into, contiguous};
use crate::random::Random;
use crate::recurrent::Recurrent;
use crate::{Error, Result};
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Shape, Tensor};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// What reaches the network in place of measurements: a controller that does as well without them does not use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sensing {
    /// The measurements.
    #[default]
    Measurements,
    /// Zeros.
    Nothing,
    /// Those of another channel.
    Shuffled,
    /// Their noise alone.
    Noise,
}

/// A batch of episodes.
#[derive(Debug, Clone)]
pub struct Episodes {
    /// The channels, one for each episode.
    pub channels: Arc<Channels>,
    /// Measurements (T).
    pub measurements: usize,
    /// The beam of the codebook that the first measurement is made with, for each episode.
    pub start: Vec<u32>,
    /// Signal-to-noise ratio in dB, for each episode; the noise has power `1 / SNR`.
    pub snr_db: Vec<f32>,
    /// The noise of episode i is that of example `first + i` here.
    pub noise: Random,
    /// The number of the first episode.
    pub first: u64,
    /// What reaches the network.
    pub sensing: Sensing,
}

impl Episodes {
    /// Names what does not fit.
    fn check(&self, config: &BeamConfig) -> Result<()> {
        let (batch, beams) = (self.channels.batch(), config.codebook.count());
        within("measurements", self.measurements, 1..=config.measurements)?;
        for (name, found) in [("start", self.start.len()), ("snr_db", self.snr_db.len())] {
            if found != batch {
                return Err(Error::Input(format!("{name}: expected one value for each of {batch} channels, found {found}")));
            }
        }
        if let Some(start) = self.start.iter().find(|s| **s as usize >= beams) {
            return Err(Error::Input(format!("start: {start} in a codebook of {beams} beams")));
        }
        self.snr_db.iter().try_for_each(|snr| noise_deviation(*snr).map(drop))?;
        let found = [self.channels.receive_elements(), self.channels.transmit_elements()];
        let expected = [config.channel.receive.elements(), config.channel.transmit.elements()];
        if found != expected {
            return Err(Error::Input(format!("channels: expected {expected:?} receive and transmit elements, found {found:?}")));
        }
        if self.channels.steps() != 1 && self.channels.steps() < self.measurements {
            return Err(Error::Input(format!("channels: {} steps for {} measurements", self.channels.steps(), self.measurements)));
        }
        Ok(())
    }

    /// The noise of an episode, `[T, 2]`.
    ///
    /// # Errors
    /// As [`measurement_noise`].
    pub fn noise(&self, episode: usize) -> Result<Vec<f32>> {
        measurement_noise(self.noise, self.first.wrapping_add(episode as u64), self.measurements, self.snr_db[episode])
    }
}

/// The noise of so many measurements, `[T, 2]`, of power `1 / SNR`: that of example `episode` of `random`.
///
/// # Errors
/// An SNR that is not finite or beyond 100 dB to either side (`snr_db`).
pub fn measurement_noise(random: Random, episode: u64, measurements: usize, snr_db: f32) -> Result<Vec<f32>> {
    let mut noise = vec![0.0; 2 * measurements];
    random.at(episode).fill_normal(0, &mut noise);
    let deviation = noise_deviation(snr_db)?;
    noise.iter_mut().for_each(|n| *n *= deviation);
    Ok(noise)
}

impl Beam {
    /// All measurements in antenna space and, side by side with them, the state behind the last one, `[B, R + hidden]`, with gradients.
    ///
    /// # Errors
    /// If the episodes do not fit each other or the arrays; the field is named.
    pub fn measure(&self, episodes: &Episodes, tapes: &Tapes) -> Result<Tensor> {
        episodes.check(&self.config)?;
        let (mut codebook, first) = (self.swept()?, self.first_beam()?);
        if self.config.pursuit().is_some() {
            // An estimate takes for a constant what was sent: without the half of the gradient that goes through it, the other half would mislead.
            codebook = codebook.detach();
        }
        #[cfg(feature = "cuda")]
        if codebook.device().is_cuda()
            && codebook.dtype() == DType::F32
            && let Some(found) = super::cuda::measure(self, episodes, &codebook, &first)?
        {
            return Ok(found);
        }
        if !(codebook.device().is_cpu() && codebook.dtype() == DType::F32) {
            return super::plain::measure(self, episodes, &codebook, &first);
        }
        let program = Program::new(self.user.signature(), Target::Tape, |recorder| self.user.record(recorder))?;
        let net = Differentiable::new(&program, tapes.products())?;
        let gradients = Gradients::default();
        let owed = gradients.owed_to(&net.parameters())?;
        let noise = (0..episodes.channels.batch()).map(|i| episodes.noise(i)).collect::<Result<_>>()?;
        let loops = Loop {
            config: self.config.clone(),
            episodes: episodes.clone(),
            noise,
            net,
            tapes: tapes.clone(),
            blocks: Mutex::default(),
            gradients,
        };
        Ok(codebook.contiguous()?.apply_op3(&first.contiguous()?, &owed, loops)?)
    }
}

/// The whole episode as one operation.
struct Loop {
    config: BeamConfig,
    episodes: Episodes,
    /// For every episode `[T, 2]`.
    noise: Vec<Vec<f32>>,
    net: Differentiable,
    tapes: Tapes,
    /// What the forward leaves for the backward.
    blocks: Mutex<Vec<Option<Block>>>,
    /// What the backward leaves for the parameters.
    gradients: Gradients,
}

/// Some rows of a batch on their way.
struct Block {
    tape: Tape,
    /// The beams that were measured with, `[T, rows, 2 N_RX]`.
    beams: Vec<f32>,
    /// What was measured, `[T, rows, 2]`, before it was turned to the reference.
    measured: Vec<f32>,
    /// `H f` of every beam, or with mobility of every step, `[rows, slots, 2 N_RX]`.
    responses: Vec<f32>,
}

/// What measurements are turned by so that the first, `y_0`, has no phase: `conj(y_0) / |y_0|`. Nothing is turned where nothing was
/// received, and in the published view.
pub(super) fn reference(view: View, [re, im]: [f32; 2]) -> [f32; 2] {
    let modulus = re.hypot(im);
    if modulus > 0.0 && view == View::Antennas { [re / modulus, -im / modulus] } else { [1.0, 0.0] }
}

fn conjugate([a, b]: [f32; 2]) -> [f32; 2] {
    [a, -b]
}

fn pair(x: &[f32], at: usize) -> [f32; 2] {
    [x[2 * at], x[2 * at + 1]]
}

impl Loop {
    fn width(&self) -> usize {
        self.config.receive_width()
    }

    /// Distinct channel vectors `H f` of an episode.
    fn slots(&self) -> usize {
        if self.episodes.channels.steps() == 1 { self.config.codebook.count() } else { self.episodes.measurements }
    }

    /// The beam of the codebook in step `t` of an episode, and the place of its `H f`.
    fn slot(&self, episode: usize, t: usize) -> (usize, usize) {
        let beam = self.config.sent(self.episodes.start[episode], t);
        (beam, if self.episodes.channels.steps() == 1 { beam } else { t })
    }

    /// Calls `f(slot, step, beam)` for every slot that an episode uses.
    fn each_slot(&self, episode: usize, mut f: impl FnMut(usize, usize, usize)) {
        for t in 0..self.episodes.measurements.min(self.slots()) {
            let (beam, slot) = self.slot(episode, t);
            f(slot, t, beam);
        }
    }

    fn rows(&self, block: usize) -> Range<usize> {
        block * BLOCK..((block + 1) * BLOCK).min(self.episodes.channels.batch())
    }

    /// Numbers of a row of the result.
    fn total(&self) -> usize {
        self.config.record() + self.config.hidden
    }

    /// Runs a block forward; `out` is `[rows, R + hidden]`.
    fn forward(&self, block: usize, codebook: &[f32], first: &[f32], out: &mut [f32]) -> Block {
        let (range, width, steps) = (self.rows(block), self.width(), self.episodes.measurements);
        let (rows, slots, transmit) = (range.len(), self.slots(), self.config.transmit_width());
        let mut responses = vec![0.0; rows * slots * width];
        for (episode, responses) in range.clone().zip(responses.chunks_exact_mut(slots * width)) {
            self.each_slot(episode, |slot, t, beam| {
                let (beam, response) = (&codebook[beam * transmit..][..transmit], &mut responses[slot * width..][..width]);
                self.episodes.channels.at(episode, t).received(beam, response);
            });
        }
        let tape = self.tapes.take(&self.net, rows, steps);
        let (beams, measured) = (vec![0.0; steps * rows * width], vec![0.0; steps * rows * 2]);
        let mut block = Block { tape, beams, measured, responses };
        for t in 0..steps {
            self.measure(&mut block, range.start, t, (first, &mut *out));
            block.tape.forward(&self.net, t);
        }
        for (r, out) in out.chunks_exact_mut(self.total()).enumerate() {
            out[self.config.record()..].copy_from_slice(block.tape.output(&self.net, 1, steps - 1).row(r));
        }
        block
    }

    /// Measures with the beams of step `t` and writes what the network reads, and the record in `out`.
    fn measure(&self, block: &mut Block, start: usize, t: usize, (first, out): (&[f32], &mut [f32])) {
        let (width, rows, slots) = (self.width(), block.tape.rows(), self.slots());
        for r in 0..rows {
            let at = t * rows + r;
            let beam = &mut block.beams[at * width..][..width];
            if t == 0 {
                beam.copy_from_slice(first);
            } else {
                beam.copy_from_slice(block.tape.output(&self.net, 0, t - 1).row(r));
                self.config.receive_weights.round(beam);
            }
            let response = &block.responses[(r * slots + self.slot(start + r, t).1) * width..][..width];
            let noise = pair(&self.noise[start + r], t);
            let signal = inner(beam, response);
            let y = match self.episodes.sensing {
                Sensing::Measurements | Sensing::Shuffled => [signal[0] + noise[0], signal[1] + noise[1]],
                Sensing::Noise => noise,
                Sensing::Nothing => [0.0; 2],
            };
            block.measured[2 * at..2 * at + 2].copy_from_slice(&y);
        }
        let features = self.config.features();
        for r in 0..rows {
            // Another row's measurements, the same row's all along.
            let from = if self.episodes.sensing == Sensing::Shuffled { (r + 1) % rows } else { r };
            let turn = reference(self.config.view, pair(&block.measured, from));
            let turned = product(pair(&block.measured, t * rows + from), turn);
            let seen = Observation {
                measurement: turned,
                beam: &block.beams[(t * rows + r) * width..][..width],
                index: self.slot(start + r, t).0,
                seen: self.config.seen(self.episodes.start[start + r], t),
                step: t,
                snr_db: self.episodes.snr_db[start + r],
            };
            let record = &mut out[r * self.total()..][self.config.record_place(t, seen.seen)];
            seen.write_antennas(record);
            seen.write(&self.config, &mut block.tape.input_mut(&self.net, 0, t)[r * features..][..features]);
        }
    }

    /// Runs a block backward from the gradients of its outputs: gives those of codebook and first beam.
    fn backward(&self, index: usize, block: &mut Block, grad: &[f32]) -> [Vec<f32>; 2] {
        let (width, steps) = (self.width(), self.episodes.measurements);
        let (range, total) = (self.rows(index), self.total());
        let rows = range.len();
        // Gradients of the beams of the step at hand, of all `H f`, and of the reference.
        let mut beams = vec![0.0; rows * width];
        let mut responses = vec![0.0; block.responses.len()];
        let mut references = vec![0.0; 2 * rows];
        for t in (0..steps).rev() {
            let Block { tape, .. } = block;
            tape.clear(&self.net, t);
            // Nobody measures with the beam of the last step: its gradient is zero.
            tape.add_output_grad(&self.net, 0, t, |r, to| add_into(to, &beams[r * width..][..width]));
            if t + 1 == steps {
                tape.add_output_grad(&self.net, 1, t, |r, to| add_into(to, &grad[r * total + self.config.record()..][..to.len()]));
            }
            tape.backward(&self.net, t);
            self.measure_backward(block, (range.start, t, grad), [&mut beams, &mut responses, &mut references]);
        }
        let mut first = vec![0.0; width];
        beams.chunks_exact(width).for_each(|row| add_into(&mut first, row));
        let mut codebook = vec![0.0; self.config.codebook.count() * self.config.transmit_width()];
        self.codebook_gradient(range, &responses, &mut codebook);
        [codebook, first]
    }

    /// From the gradients of what the network read in step `t` to those of the step's beams (replaced), of `H f` and of the
    /// reference (added to). Gradients of a complex number are pairs as well: by the real and by the imaginary part.
    fn measure_backward(&self, block: &Block, (start, t, outer): (usize, usize, &[f32]), [beams, responses, references]: [&mut [f32]; 3]) {
        let (width, rows, slots) = (self.width(), block.tape.rows(), self.slots());
        let grads = block.tape.input_grad(&self.net, 0, t);
        for r in 0..rows {
            let at = t * rows + r;
            let (beam, grad) = (&block.beams[at * width..][..width], grads.row(r));
            let (y, turn) = (pair(&block.measured, at), reference(self.config.view, pair(&block.measured, r)));
            let turned = product(y, turn);
            let (index, to) = (self.config.seen(self.episodes.start[start + r], t), &mut beams[r * width..][..width]);
            // What the network and the decision saw: z_n = s y' w_n, and the former also s y' itself.
            let record = &outer[r * self.total()..][self.config.record_place(t, index)];
            let (antennas, mut dy) = match self.config.view {
                View::Scalars => (None, pair(grad, 0)),
                View::Antennas => {
                    let (antennas, rest) = grad.split_at(self.config.codebook.count() * width);
                    (Some(&antennas[index * width..][..width]), pair(rest, 0).map(|g| SCALE * g))
                }
            };
            for (n, to) in to.chunks_exact_mut(2).enumerate() {
                let (mut dz, w) = (pair(record, n), pair(beam, n));
                if let Some(antennas) = antennas {
                    let seen = pair(antennas, n);
                    dz = [dz[0] + seen[0], dz[1] + seen[1]];
                }
                let dz = dz.map(|g| ANTENNA_SCALE * g);
                let through = product(dz, conjugate(w));
                dy = [dy[0] + through[0], dy[1] + through[1]];
                to.copy_from_slice(&product(dz, conjugate(turned)));
            }
            // y' = y rho
            let drho = product(dy, conjugate(y));
            (references[2 * r], references[2 * r + 1]) = (references[2 * r] + drho[0], references[2 * r + 1] + drho[1]);
            let mut dy = product(dy, conjugate(turn));
            if t == 0 && self.config.view == View::Antennas {
                // rho = exp(-j arg y_0), whose derivative by the argument is -j rho.
                let power = y[0] * y[0] + y[1] * y[1];
                if power > 0.0 {
                    let by_argument = product(turn, conjugate(pair(references, r)))[1];
                    (dy[0], dy[1]) = (dy[0] - by_argument * y[1] / power, dy[1] + by_argument * y[0] / power);
                }
            }
            // y = w^H (H f) + n
            let slot = (r * slots + self.slot(start + r, t).1) * width;
            let response = &block.responses[slot..][..width];
            for (n, (to, dr)) in to.chunks_exact_mut(2).zip(responses[slot..][..width].chunks_exact_mut(2)).enumerate() {
                let dw = product(conjugate(dy), pair(response, n));
                let back = product(dy, pair(beam, n));
                (to[0], to[1]) = (to[0] + dw[0], to[1] + dw[1]);
                (dr[0], dr[1]) = (dr[0] + back[0], dr[1] + back[1]);
            }
        }
    }

    /// Adds the gradients of `H f` of some episodes up to those of the codebook: `H^H` of each.
    fn codebook_gradient(&self, range: Range<usize>, responses: &[f32], codebook: &mut [f32]) {
        let (width, slots, transmit) = (self.width(), self.slots(), self.config.transmit_width());
        let mut back = vec![0.0; transmit];
        for (episode, responses) in range.zip(responses.chunks_exact(slots * width)) {
            self.each_slot(episode, |slot, t, beam| {
                self.episodes.channels.at(episode, t).returned(&responses[slot * width..][..width], &mut back);
                add_into(&mut codebook[beam * transmit..][..transmit], &back);
            });
        }
    }
}

impl CustomOp3 for Loop {
    fn name(&self) -> &'static str {
        "episode"
    }

    fn cpu_fwd(
        &self,
        codebook: &CpuStorage,
        codebook_layout: &Layout,
        first: &CpuStorage,
        first_layout: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (codebook, first) = (contiguous(codebook, codebook_layout)?, contiguous(first, first_layout)?);
        let batch = self.episodes.channels.batch();
        let mut out = vec![0.0; batch * self.total()];
        let parts = out.par_chunks_mut(BLOCK * self.total()).enumerate();
        let blocks = parts.map(|(i, out)| Some(self.forward(i, codebook, first, out))).collect();
        *self.blocks.lock().unwrap_or_else(PoisonError::into_inner) = blocks;
        Ok((CpuStorage::F32(out), (batch, self.total()).into()))
    }

    fn bwd(
        &self,
        codebook: &Tensor,
        first: &Tensor,
        owed: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let grad = grad.flatten_all()?.to_vec1::<f32>()?;
        let mut blocks = std::mem::take(&mut *self.blocks.lock().unwrap_or_else(PoisonError::into_inner));
        let parts = blocks.par_iter_mut().zip(grad.par_chunks(BLOCK * self.total())).enumerate();
        let parts = parts.map(|(i, (block, grad))| block.as_mut().map(|block| self.backward(i, block, grad)));
        let Some(parts) = parts.collect::<Option<Vec<_>>>() else { candle_core::bail!("episode: a second backward") };
        self.gradients.leave(self.net.gradients(&blocks.iter().flatten().map(|block| &block.tape).collect::<Vec<_>>())?);
        blocks.into_iter().flatten().for_each(|block| self.tapes.put(block.tape));
        let sum = parts.into_iter().reduce(|mut sum, part| {
            sum.iter_mut().zip(&part).for_each(|(to, from)| add_into(to, from));
            sum
        });
        let Some([dcodebook, dfirst]) = sum else { candle_core::bail!("episode: an empty batch") };
        let shaped =
            |values: Vec<f32>, like: &Tensor| Ok::<_, candle_core::Error>(Some(Tensor::from_vec(values, like.shape(), like.device())?));
        Ok((shaped(dcodebook, codebook)?, shaped(dfirst, first)?, Some(owed.zeros_like()?)))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A pass without a backward.
        let blocks = self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner);
        blocks.drain(..).flatten().for_each(|block| self.tapes.put(block.tape));
    }
}

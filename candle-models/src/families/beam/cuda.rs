//! The closed loop on an NVIDIA GPU as one operation, forward and backward: [`super::episode`] says what it computes. A step is one
//! launch for the measurement and a launch or a product for each operation of the user's network (`exec::tape::cuda`). `H f` of all steps
//! comes from outside, by matrix products that carry gradients to the codebook.

use super::config::{View, Weighting};
use super::episode::{Episodes, Sensing};
use super::user::{ANTENNA_SCALE, SCALE};
use super::{Beam, BeamConfig, plain};
use crate::Result;
use crate::cuda::{self, Gpu, Matrix, device_of};
use crate::engine::Model;
use crate::exec::Target;
use crate::exec::program::Program;
use crate::exec::tape::Gradients;
use crate::exec::tape::cuda::{Net, Tape};
use crate::ops::cuda::episode::{Episode, Measure, MeasureBackward};
use crate::ops::cuda::product::{Operand, copy};
use crate::ops::cuda::sums::column_sums;
use crate::recurrent::Recurrent;
use candle_core::backend::BackendDevice;
use candle_core::{CpuStorage, CudaStorage, CustomOp3, DType, Layout, Result as CandleResult, Shape, Tensor, bail};
use std::sync::{Mutex, PoisonError};

/// [`Beam::measure`] with a codebook in f32 on a GPU; nothing for what has no form here, which goes through [`plain`]: other memories than
/// gated recurrent units, rounded beams, measurements of other channels.
pub(super) fn measure(model: &Beam, episodes: &Episodes, codebook: &Tensor, first: &Tensor) -> Result<Option<Tensor>> {
    let rounds = matches!(model.config.receive_weights, Weighting::QuantisedPhases { .. });
    if rounds || episodes.sensing == Sensing::Shuffled {
        return Ok(None);
    }
    let program = Program::new(model.user.signature(), Target::Tape, |recorder| model.user.record(recorder))?;
    let Some(net) = Net::new(&program, device_of(codebook)?)? else { return Ok(None) };
    let gradients = Gradients::default();
    let owed = gradients.owed_to(&net.parameters())?;
    let (batch, steps) = (episodes.channels.batch(), episodes.measurements);
    let mut course = Vec::with_capacity(batch * 2 * (1 + steps));
    for (i, (start, snr)) in episodes.start.iter().zip(&episodes.snr_db).enumerate() {
        course.extend([*start as f32, *snr]);
        course.extend(episodes.noise(i)?);
    }
    let course = Tensor::from_vec(course, (batch, 2 * (1 + steps)), codebook.device())?;
    let loops = Loop { config: model.config.clone(), sensing: episodes.sensing, course, net, passed: Mutex::default(), gradients };
    let responses = plain::responses(model, episodes, codebook)?.contiguous()?;
    Ok(Some(responses.apply_op3(&first.contiguous()?, &owed, loops)?))
}

/// The whole episode as one operation.
struct Loop {
    config: BeamConfig,
    sensing: Sensing,
    /// `[B, 2 + 2 T]`: where the sweep starts, SNR in dB, noise.
    course: Tensor,
    net: Net,
    /// What the forward leaves for the backward: the network's values, and what was measured, `[T, B, 2]`.
    passed: Mutex<Option<(Tape, Tensor)>>,
    /// What the backward leaves for the parameters.
    gradients: Gradients,
}

impl Loop {
    fn batch(&self) -> usize {
        self.course.dims()[0]
    }

    fn steps(&self) -> usize {
        self.course.dims()[1] / 2 - 1
    }

    fn episode(&self, responses: Matrix, first: u64, measured: &Tensor) -> CandleResult<Episode> {
        let config = &self.config;
        let beams = config.codebook.count();
        Ok(Episode {
            responses,
            course: cuda::matrix(&self.course)?,
            first,
            measured: cuda::address(measured)?,
            steps: self.steps() as u32,
            beams: beams as u32,
            places: config.measurements.div_ceil(beams) as u32,
            relative: u32::from(config.is_relative()),
            view: u32::from(config.view == View::Antennas),
            sensing: match self.sensing {
                Sensing::Measurements | Sensing::Shuffled => 0,
                Sensing::Noise => 1,
                Sensing::Nothing => 2,
            },
            last: (config.measurements.max(2) - 1) as f32,
            scale: SCALE,
            antenna_scale: ANTENNA_SCALE,
        })
    }

    /// The beams of step `t`; those of the first are the same for all episodes.
    fn beams(&self, tape: &Tape, t: usize) -> Matrix {
        if t == 0 { Matrix::NONE } else { self.net.output(tape, 0, t - 1) }
    }

    /// Runs all steps, and writes record and state.
    fn forward(&self, gpu: &Gpu, [responses, out]: [Matrix; 2], first: u64) -> CandleResult<(Tape, Tensor)> {
        let (net, batch, steps, dtype) = (&self.net, self.batch(), self.steps(), self.net.dtype());
        let (tape, measured) = (net.tape(batch, steps)?, cuda::empty((steps, batch, 2), DType::F32, gpu.device())?);
        let episode = self.episode(responses, first, &measured)?;
        for t in 0..steps {
            let args = Measure { episode, beams: self.beams(&tape, t), features: net.input(&tape, t), record: out, step: t as u32 };
            // SAFETY: `out` has a row for each episode, and the tape's matrices are as wide as the network says.
            unsafe { args.launch(gpu, dtype, batch)? };
            net.forward(&tape, t)?;
        }
        let state = Operand { matrix: net.output(&tape, 1, steps - 1), wide: false };
        // SAFETY: the state stands behind the record.
        unsafe { copy(gpu, dtype, state, Operand { matrix: self.state(out), wide: true }, batch)? };
        Ok((tape, measured))
    }

    /// The columns of the state behind those of the record.
    fn state(&self, out: Matrix) -> Matrix {
        out.columns(self.config.record(), self.config.hidden, DType::F32.size_in_bytes())
    }

    /// Gradients of `H f`, of the first beam and of the network's parameters, from those of record and state.
    fn backward(
        &self,
        (tape, measured): &(Tape, Tensor),
        [responses, first, grad]: [&Tensor; 3],
    ) -> CandleResult<([Tensor; 2], Vec<Tensor>)> {
        let gpu = Gpu::of(device_of(grad)?)?;
        let (net, batch, steps, dtype) = (&self.net, self.batch(), self.steps(), self.net.dtype());
        let new = |shape: &Shape| cuda::empty(shape, DType::F32, gpu.device());
        let (responses_grad, first_grad) = (new(responses.shape())?, new(&(batch, first.dim(1)?).into())?);
        let references = new(&(batch, 2).into())?;
        let mut grads = net.grads(tape)?;
        let episode = self.episode(cuda::matrix(responses)?, cuda::address(first)?, measured)?;
        let outer = cuda::matrix(grad)?;
        let state = Operand { matrix: net.output_grad(&mut grads, 1, steps - 1), wide: false };
        // SAFETY: the state stands behind the record.
        unsafe { copy(&gpu, dtype, Operand { matrix: self.state(outer), wide: true }, state, batch)? };
        for t in (0..steps).rev() {
            // Nobody measures with the beam of the last step: its gradient is zero.
            net.backward(tape, &mut grads, t)?;
            let beams_grad = if t == 0 { Matrix::NONE } else { net.output_grad(&mut grads, 0, t - 1) };
            let args = MeasureBackward {
                episode,
                beams: self.beams(tape, t),
                grad: net.input_grad(&grads),
                outer,
                beams_grad,
                first_grad: if t == 0 { cuda::address(&first_grad)? } else { 0 },
                responses_grad: cuda::address(&responses_grad)?,
                references: cuda::address(&references)?,
                step: t as u32,
            };
            // SAFETY: as in the forward; the gradients have the sizes of what they belong to.
            unsafe { args.launch(&gpu, dtype, batch)? };
        }
        Ok(([responses_grad, column_sums(&first_grad)?.unsqueeze(0)?], net.gradients(tape, &grads)?))
    }
}

impl CustomOp3 for Loop {
    fn name(&self) -> &'static str {
        "episode"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> CandleResult<(CpuStorage, Shape)> {
        bail!("an episode of a GPU on the host")
    }

    fn cuda_fwd(
        &self,
        responses: &CudaStorage,
        responses_layout: &Layout,
        first: &CudaStorage,
        first_layout: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> CandleResult<(CudaStorage, Shape)> {
        let (gpu, width) = (Gpu::of(&responses.device)?, self.config.receive_width());
        cuda::same(&(self.batch(), self.steps(), width).into(), DType::F32, (responses, responses_layout))?;
        let first = cuda::parameter(first, first_layout, width)?;
        let shape = Shape::from((self.batch(), self.config.record() + self.config.hidden));
        // Places of the record that nothing was measured for are zero.
        let storage = gpu.device().zeros_impl(&shape, DType::F32)?;
        let out = cuda::storage_matrix(&storage, &Layout::contiguous(&shape))?;
        let passed = self.forward(&gpu, [cuda::storage_matrix(responses, responses_layout)?, out], first)?;
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = Some(passed);
        Ok((storage, shape))
    }

    fn bwd(
        &self,
        responses: &Tensor,
        first: &Tensor,
        owed: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> CandleResult<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(passed) = passed else { bail!("episode: a second backward") };
        let ([responses_grad, first_grad], gradients) = self.backward(&passed, [responses, first, &grad.contiguous()?])?;
        self.gradients.leave(gradients);
        Ok((Some(responses_grad), Some(first_grad), Some(owed.zeros_like()?)))
    }
}

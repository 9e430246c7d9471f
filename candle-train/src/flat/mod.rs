//! Gradients, moments and averages of all parameters in flat buffers on a GPU, where one kernel reaches them all.
//!
//! A parameter keeps its own memory, which is updated in place; a table of chunks says where each stretch of it lies. The norm
//! stays on the device: the update reads it there, and the host sees it only together with the loss.

use crate::gradients::{Clipping, bucket_sizes};
use crate::optim::{Moment, ParameterGroup, Step};
use crate::parallel::Communicator;
use candle_core::{CudaDevice, DType, Device, Tensor, Var};
use candle_models::cuda::{Gpu, Kernel, Source, address, empty};
use candle_models::ops::slices::AdamwFactors;
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

static SOURCE: Source = Source { name: "adamw", text: include_str!("adamw.cu") };
const GATHER: Kernel = Kernel { source: &SOURCE, name: "gather" };
const SQUARES: Kernel = Kernel { source: &SOURCE, name: "squares" };
const CLIP: Kernel = Kernel { source: &SOURCE, name: "clip" };
const UPDATE: Kernel = Kernel { source: &SOURCE, name: "update" };

/// Values of a chunk at most: one block each, enough of them to fill a GPU from a few hundred thousand parameters on.
const CHUNK: usize = 2048;
const THREADS: usize = 256;

/// A parameter's place among all values.
#[derive(Debug, Clone)]
struct Place {
    name: String,
    range: Range<usize>,
}

fn places(vars: &BTreeMap<String, Var>) -> Result<Vec<Place>> {
    let mut next = 0;
    let places = vars.iter().map(|(name, var)| {
        next += var.elem_count();
        Place { name: name.clone(), range: next - var.elem_count()..next }
    });
    let places: Vec<_> = places.collect();
    match u32::try_from(next) {
        Ok(_) => Ok(places),
        Err(_) => Err(Error::Input(format!("{next} parameters: the optimiser counts them in 32 bits"))),
    }
}

/// `Chunk` in `adamw.cu`, as words: a table of them travels as a tensor of u32.
fn chunks(data: u64, range: &Range<usize>, flag: bool) -> impl Iterator<Item = u32> {
    range.clone().step_by(CHUNK).flat_map(move |at| {
        let (data, length) = (data + 4 * (at - range.start) as u64, CHUNK.min(range.end - at));
        [data as u32, (data >> 32) as u32, at as u32, length as u32, u32::from(flag), 0]
    })
}

/// Words of a chunk.
const WORDS: usize = 6;

/// A table of chunks on the device.
#[derive(Debug)]
struct Table {
    words: Tensor,
    chunks: usize,
}

impl Table {
    fn new(words: &[u32], device: &CudaDevice) -> Result<Self> {
        Ok(Self { words: Tensor::from_slice(words, words.len(), &Device::Cuda(device.clone()))?, chunks: words.len() / WORDS })
    }
}

/// The sum of all gradients of a step.
pub(crate) struct FlatGradients {
    gpu: Arc<Gpu>,
    sum: Tensor,
    places: Vec<Place>,
    /// Values of each bucket, all together those of `sum`.
    buckets: Vec<usize>,
    /// Which parameters the loss depended on.
    present: Vec<bool>,
}

impl std::fmt::Debug for FlatGradients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FlatGradients({} values)", self.sum.elem_count())
    }
}

/// `Gather` in `adamw.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Gather {
    chunks: u64,
    sum: u64,
}

impl FlatGradients {
    pub fn new(device: &CudaDevice, vars: &BTreeMap<String, Var>, limit: usize) -> Result<Self> {
        let places = places(vars)?;
        let buckets = bucket_sizes(places.iter().map(|place| place.range.len()), limit);
        let total = places.last().map_or(0, |p| p.range.end);
        let sum = Tensor::zeros(total.max(1), DType::F32, &Device::Cuda(device.clone()))?;
        Ok(Self { gpu: Gpu::of(device)?, sum, present: vec![false; places.len()], buckets, places })
    }

    pub fn clear(&mut self) {
        self.present.fill(false);
    }

    /// The gradients of one backward pass, in name order; the first of a step replaces what is there.
    pub fn add(&mut self, gradients: &[(&String, Option<&Tensor>)]) -> Result<()> {
        let (mut words, mut alive) = (Vec::new(), Vec::new());
        for ((place, present), (name, gradient)) in self.places.iter().zip(&mut self.present).zip(gradients) {
            let Some(gradient) = gradient else { continue };
            if place.name != **name || place.range.len() != gradient.elem_count() {
                let expected = format!("{} values for {}", place.range.len(), place.name);
                return Err(Error::tensor(*name, expected, gradient.elem_count()));
            }
            let gradient = gradient.to_dtype(DType::F32)?.contiguous()?;
            words.extend(chunks(address(&gradient)?, &place.range, *present));
            *present = true;
            alive.push(gradient);
        }
        let table = Table::new(&words, self.gpu.device())?;
        let args = Gather { chunks: address(&table.words)?, sum: address(&self.sum)? };
        // SAFETY: the chunks lie within gradients that live until the kernel is on the stream, and within the sum.
        unsafe { self.gpu.launch(GATHER, None, ((table.chunks, 1, 1), THREADS, 0), &args)? };
        Ok(())
    }

    pub fn name(&self, i: usize) -> &str {
        &self.places[i].name
    }

    pub fn present(&self) -> &[bool] {
        &self.present
    }

    pub fn set_present(&mut self, present: &[bool]) {
        self.present.copy_from_slice(present);
    }

    pub fn reduce(&mut self, ranks: &dyn Communicator) -> Result<()> {
        for (place, _) in self.places.iter().zip(&self.present).filter(|(_, present)| !**present) {
            self.sum.slice_set(&Tensor::zeros(place.range.len(), DType::F32, self.sum.device())?, 0, place.range.start)?;
        }
        let mut end = self.places.last().map_or(0, |place| place.range.end);
        self.buckets.iter().rev().try_for_each(|size| {
            end -= size;
            ranks.all_reduce_cuda(&self.sum.narrow(0, end, *size)?)
        })
    }

    /// All gradients, copied.
    pub fn to_host(&self) -> Result<Vec<Option<Vec<f32>>>> {
        let values = self.sum.to_vec1::<f32>()?;
        let one = |(place, present): (&Place, &bool)| present.then(|| values[place.range.clone()].to_vec());
        Ok(self.places.iter().zip(&self.present).map(one).collect())
    }
}

/// Moments and average of all parameters.
pub(crate) struct FlatMoments {
    gpu: Arc<Gpu>,
    vars: Vec<Var>,
    places: Vec<Place>,
    mean: Tensor,
    square: Tensor,
    average: Tensor,
    /// Of every parameter.
    groups: Vec<ParameterGroup>,
    /// What the parameters that had a gradient need, and which they were: the same in nearly all steps.
    updates: Option<(Vec<bool>, Updates)>,
}

/// The parameters of one step. One launch updates those of a learning rate and a weight decay, and those without decay of that learning
/// rate, which a flag of their chunks marks: usually that is one launch for all.
struct Updates {
    table: Table,
    /// Consecutive chunks of the table, and the group whose factors they are updated with.
    launches: Vec<(Range<usize>, ParameterGroup)>,
}

impl Updates {
    fn new(parameters: &[(u64, &Range<usize>, ParameterGroup)], device: &CudaDevice) -> Result<Self> {
        // The first group of a learning rate that decays stands for those that do not.
        let mut groups: Vec<ParameterGroup> = Vec::new();
        for decays in [true, false] {
            for (.., group) in parameters.iter().filter(|(.., group)| (group.weight_decay > 0.0) == decays) {
                if !groups.iter().any(|known| launches_with(*known, *group)) {
                    groups.push(*group);
                }
            }
        }
        let first = |group: ParameterGroup| groups.iter().position(|known| launches_with(*known, group));
        let (mut words, mut launches) = (Vec::new(), Vec::new());
        for (number, launched) in groups.iter().enumerate() {
            let start = words.len() / WORDS;
            for (data, range, group) in parameters.iter().filter(|(.., group)| first(*group) == Some(number)) {
                words.extend(chunks(*data, range, group.weight_decay > 0.0));
            }
            launches.push((start..words.len() / WORDS, *launched));
        }
        Ok(Self { table: Table::new(&words, device)?, launches })
    }
}

/// Whether a launch with the factors of one group updates another one's parameters as well.
fn launches_with(launched: ParameterGroup, group: ParameterGroup) -> bool {
    launched.learning_rate == group.learning_rate && (group.weight_decay == 0.0 || launched.weight_decay == group.weight_decay)
}

impl std::fmt::Debug for FlatMoments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FlatMoments({} values)", self.mean.elem_count())
    }
}

/// `Squares` in `adamw.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Squares {
    chunks: u64,
    gradient: u64,
    partial: u64,
}

/// `Clip` in `adamw.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Clip {
    partial: u64,
    loss: u64,
    verdict: u64,
    limit: f64,
    unscale: f64,
    chunks: u32,
}

/// `Update` in `adamw.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Update {
    chunks: u64,
    gradient: u64,
    mean: u64,
    square: u64,
    average: u64,
    verdict: u64,
    factors: AdamwFactors,
}

impl FlatMoments {
    pub fn new(device: &CudaDevice, vars: &BTreeMap<String, Var>) -> Result<Self> {
        let places = places(vars)?;
        let zeros = || Tensor::zeros(places.last().map_or(1, |p| p.range.end), DType::F32, &Device::Cuda(device.clone()));
        let values = vars.values().map(|var| var.flatten_all()).collect::<candle_core::Result<Vec<_>>>()?;
        let average = if values.is_empty() { zeros()? } else { Tensor::cat(&values, 0)?.copy()? };
        let (mean, square) = (zeros()?, zeros()?);
        let groups = vars.values().map(|var| ParameterGroup::by_rank(var.rank())).collect();
        let vars = vars.values().cloned().collect();
        Ok(Self { gpu: Gpu::of(device)?, vars, places, mean, square, average, groups, updates: None })
    }

    pub fn set_groups(&mut self, of: impl Fn(&str, &[usize]) -> Result<ParameterGroup>) -> Result<()> {
        let groups = self.places.iter().zip(&self.vars).map(|(place, var)| of(&place.name, var.dims())).collect::<Result<Vec<_>>>()?;
        if groups != self.groups {
            (self.groups, self.updates) = (groups, None);
        }
        Ok(())
    }

    fn updates(&mut self, present: &[bool]) -> Result<&Updates> {
        let updates = match self.updates.take().filter(|(known, _)| known == present) {
            Some(updates) => updates,
            None => {
                let mut parameters = Vec::new();
                for (i, place) in self.places.iter().enumerate().filter(|(i, _)| present[*i]) {
                    parameters.push((address(self.vars[i].as_tensor())?, &place.range, self.groups[i]));
                }
                (present.to_vec(), Updates::new(&parameters, self.gpu.device())?)
            }
        };
        Ok(&self.updates.insert(updates).1)
    }

    pub fn step(
        &mut self,
        gradients: &FlatGradients,
        figures: &Tensor,
        clipping: Clipping,
        factors: &dyn Fn(ParameterGroup) -> AdamwFactors,
    ) -> Result<Step> {
        if gradients.sum.elem_count() != self.mean.elem_count() || figures.dtype() != DType::F32 {
            return Err(Error::Input("gradients or figures of other parameters".to_owned()));
        }
        let figures = figures.contiguous()?;
        let Updates { table, launches } = self.updates(&gradients.present)?;
        let (table_address, chunks, launches) = (address(&table.words)?, table.chunks, launches.clone());
        let device = self.gpu.device();
        let (partial, verdict) = (empty(chunks.max(1), DType::F64, device)?, empty(2, DType::F32, device)?);
        let (gradient, partial_address, verdict_address) = (address(&gradients.sum)?, address(&partial)?, address(&verdict)?);
        let squares = Squares { chunks: table_address, gradient, partial: partial_address };
        let loss = address(&figures)?;
        let Clipping { limit, unscale } = clipping;
        let clip = Clip { partial: partial_address, loss, verdict: verdict_address, limit, unscale, chunks: chunks as u32 };
        let [mean, square, average] = [&self.mean, &self.square, &self.average].map(address);
        let (mean, square, average) = (mean?, square?, average?);
        let blocks = ((chunks, 1, 1), THREADS, 0);
        // SAFETY: the chunks lie within the flat buffers and the parameters; `partial` has a value for each chunk.
        unsafe {
            self.gpu.launch(SQUARES, None, blocks, &squares)?;
            self.gpu.launch(CLIP, None, ((1, 1, 1), THREADS, 0), &clip)?;
        }
        for (part, group) in launches {
            let (chunks, factors) = (table_address + (part.start * WORDS * size_of::<u32>()) as u64, factors(group));
            let update = Update { chunks, gradient, mean, square, average, verdict: verdict_address, factors };
            // SAFETY: as above; each chunk is in one part.
            unsafe { self.gpu.launch(UPDATE, None, ((part.len(), 1, 1), THREADS, 0), &update)? };
        }
        let mut read = Tensor::cat(&[&figures, &verdict.narrow(0, 0, 1)?], 0)?.to_vec1::<f32>()?;
        let norm = read.pop().map_or(f64::NAN, f64::from);
        Ok(Step::new(norm, read))
    }

    fn moment(&self, moment: Moment) -> &Tensor {
        match moment {
            Moment::Mean => &self.mean,
            Moment::Square => &self.square,
            Moment::Average => &self.average,
        }
    }

    /// By parameter, on the host.
    pub fn tensors(&self, moment: Moment) -> Result<Vec<(String, Tensor)>> {
        let all = self.moment(moment).to_vec1::<f32>()?;
        let one = |(place, var): (&Place, &Var)| {
            Ok((place.name.clone(), Tensor::from_slice(&all[place.range.clone()], var.dims(), &Device::Cpu)?))
        };
        self.places.iter().zip(&self.vars).map(one).collect()
    }

    pub fn set(&mut self, moment: Moment, values: impl Fn(&str, &[usize]) -> Result<Vec<f32>>) -> Result<()> {
        let mut all = Vec::with_capacity(self.mean.elem_count());
        for (place, var) in self.places.iter().zip(&self.vars) {
            all.extend(values(&place.name, var.dims())?);
        }
        let all = Tensor::from_vec(all, self.mean.elem_count(), self.mean.device())?;
        match moment {
            Moment::Mean => self.mean = all,
            Moment::Square => self.square = all,
            Moment::Average => self.average = all,
        }
        Ok(())
    }
}

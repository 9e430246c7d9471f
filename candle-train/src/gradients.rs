//! Gradients of one step, summed over its micro batches and then over the ranks, as flat buckets in name order.
//!
//! On CUDA they lie in one buffer, so that one kernel can reduce or apply them all.

#[cfg(feature = "cuda")]
use crate::flat::FlatGradients;
use crate::parallel::Communicator;
use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, DType, Storage, Tensor, Var};
use candle_models::ops::slices;
use candle_models::{Error, Result};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// Values of a bucket, unless a parameter alone is larger: 25 MB, large enough for the bandwidth of a network and small enough to
/// be on its way while the next one is made.
const BUCKET: usize = 25_000_000 / 4;

/// One gradient per parameter, in name order, on the parameters' device.
///
/// ```
/// use candle_models::candle_core::{Device, Var};
/// use candle_train::gradients::Gradients;
/// use std::collections::BTreeMap;
/// # fn main() -> candle_models::Result<()> {
/// let vars = BTreeMap::from([("x".to_owned(), Var::new(&[3f32, 4.0], &Device::Cpu)?)]);
/// let mut gradients = Gradients::zeros(&vars)?;
/// for _ in 0..2 {
///     gradients.add(&vars, &(vars["x"].sqr()?.sum_all()? * 0.5)?.backward()?)?; // two micro batches
/// }
/// gradients.divide_by(2.0);
/// assert!((gradients.norm()? - 5.0).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Gradients {
    sums: Sums,
    /// What the sums are multiplied by to be gradients.
    unscale: f64,
}

#[derive(Debug)]
pub(crate) enum Sums {
    Host(Buckets),
    /// All in one buffer.
    #[cfg(feature = "cuda")]
    Cuda(FlatGradients),
}

/// Gradients on the host.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    buckets: Vec<Vec<f32>>,
    slots: Vec<Slot>,
}

/// A parameter's place.
#[derive(Debug)]
struct Slot {
    name: String,
    bucket: usize,
    /// In the bucket. What is there is of the step before where the loss has not depended on the parameter yet.
    range: Range<usize>,
    /// Whether the loss depended on the parameter in this step.
    present: bool,
}

/// Consecutive ranges of at most `limit` values, or one item: the buckets of items of these sizes.
pub(crate) fn bucket_sizes(sizes: impl Iterator<Item = usize>, limit: usize) -> Vec<usize> {
    let mut buckets: Vec<usize> = Vec::new();
    for size in sizes {
        match buckets.last_mut() {
            Some(last) if *last + size <= limit => *last += size,
            _ => buckets.push(size),
        }
    }
    buckets
}

impl Buckets {
    fn new(vars: &BTreeMap<String, Var>, limit: usize) -> Self {
        let buckets: Vec<Vec<f32>> = bucket_sizes(vars.values().map(|v| v.elem_count()), limit).iter().map(|&n| vec![0.0; n]).collect();
        let (mut bucket, mut at) = (0, 0);
        let slot = |(name, var): (&String, &Var)| {
            if at == buckets[bucket].len() {
                (bucket, at) = (bucket + 1, 0);
            }
            at += var.elem_count();
            Slot { name: name.clone(), bucket, range: at - var.elem_count()..at, present: false }
        };
        let slots = vars.iter().map(slot).collect();
        Self { buckets, slots }
    }

    fn values(&self, slot: &Slot) -> Option<&[f32]> {
        slot.present.then(|| &self.buckets[slot.bucket][slot.range.clone()])
    }

    fn all(&self) -> impl Iterator<Item = Option<&[f32]>> {
        self.slots.iter().map(|slot| self.values(slot))
    }

    /// Every parameter's slot with its memory.
    fn parts<'a>(&'a mut self) -> Vec<(&'a mut Slot, &'a mut [f32])> {
        let mut buckets = self.buckets.iter_mut();
        let (mut rest, mut current): (&mut [f32], _) = (&mut [], None);
        let part = |slot: &'a mut Slot| {
            if current != Some(slot.bucket) {
                (rest, current) = (buckets.next().map(Vec::as_mut_slice).unwrap_or_default(), Some(slot.bucket));
            }
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(slot.range.len());
            rest = behind;
            (slot, part)
        };
        self.slots.iter_mut().map(part).collect()
    }

    fn add(&mut self, gradients: &[(&String, Option<&Tensor>)]) -> Result<()> {
        self.parts().into_par_iter().zip(gradients).try_for_each(|((slot, sum), (name, gradient))| {
            let Some(gradient) = gradient else { return Ok(()) };
            if slot.name != **name {
                return Err(Error::tensor(*name, format!("a gradient of {}", slot.name), "another parameter's"));
            }
            add(slot, sum, gradient)
        })
    }

    /// Adds the gradient of one parameter. Returns its bucket.
    pub fn add_one(&mut self, parameter: usize, gradient: &Tensor) -> Result<usize> {
        let slot = &mut self.slots[parameter];
        let bucket = slot.bucket;
        let range = slot.range.clone();
        add(slot, &mut self.buckets[bucket][range], gradient)?;
        Ok(bucket)
    }

    /// How many parameters each bucket has.
    pub fn members(&self) -> Vec<usize> {
        let mut members = vec![0; self.buckets.len()];
        self.slots.iter().for_each(|slot| members[slot.bucket] += 1);
        members
    }

    /// Zeros where the loss did not depend on a parameter, in the buckets that are here.
    pub fn clear_absent(&mut self) {
        for slot in self.slots.iter().filter(|slot| !slot.present) {
            self.buckets[slot.bucket][slot.range.clone()].fill(0.0);
        }
    }

    pub fn take_bucket(&mut self, bucket: usize) -> Vec<f32> {
        std::mem::take(&mut self.buckets[bucket])
    }

    pub fn put_bucket(&mut self, bucket: usize, values: Vec<f32>) {
        self.buckets[bucket] = values;
    }
}

/// Adds a gradient; the first one of a step replaces what is there.
fn add(slot: &mut Slot, sum: &mut [f32], gradient: &Tensor) -> Result<()> {
    if sum.len() != gradient.elem_count() {
        return Err(Error::tensor(&slot.name, format!("a gradient of {} values", sum.len()), gradient.elem_count()));
    }
    let gradient = gradient.to_dtype(DType::F32)?.contiguous()?;
    let (storage, layout) = gradient.storage_and_layout();
    let (Storage::Cpu(CpuStorage::F32(values)), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        return Err(Error::tensor(&slot.name, "a contiguous gradient on the CPU", format!("{layout:?}")));
    };
    if slot.present {
        slices::add(sum, &values[start..end]);
    } else {
        sum.copy_from_slice(&values[start..end]);
    }
    slot.present = true;
    Ok(())
}

impl Gradients {
    /// Zeros for every parameter, in buckets of 25 MB.
    pub fn zeros(vars: &BTreeMap<String, Var>) -> Result<Self> {
        Self::in_buckets(vars, BUCKET)
    }

    /// Zeros for every parameter. Buckets have at most `limit` values, or one parameter.
    pub fn in_buckets(vars: &BTreeMap<String, Var>, limit: usize) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Some(candle_core::Device::Cuda(device)) = vars.values().next().map(|var| var.device()) {
            return Ok(Self { sums: Sums::Cuda(FlatGradients::new(device, vars, limit)?), unscale: 1.0 });
        }
        Ok(Self { sums: Sums::Host(Buckets::new(vars, limit)), unscale: 1.0 })
    }

    /// Forgets the step before.
    pub fn clear(&mut self) {
        self.unscale = 1.0;
        match &mut self.sums {
            Sums::Host(gradients) => gradients.slots.iter_mut().for_each(|slot| slot.present = false),
            #[cfg(feature = "cuda")]
            Sums::Cuda(gradients) => gradients.clear(),
        }
    }

    /// Adds the gradients of one backward pass. A parameter that the loss does not depend on is left out.
    pub fn add(&mut self, vars: &BTreeMap<String, Var>, grads: &GradStore) -> Result<()> {
        let pairs: Vec<_> = vars.iter().map(|(name, var)| (name, grads.get(var))).collect();
        match &mut self.sums {
            Sums::Host(gradients) => gradients.add(&pairs),
            #[cfg(feature = "cuda")]
            Sums::Cuda(gradients) => gradients.add(&pairs),
        }
    }

    /// Makes a mean of the sum: from here on the gradients are what was added, over `weight`.
    pub fn divide_by(&mut self, weight: f64) {
        self.unscale = 1.0 / weight;
    }

    /// Per parameter in name order, whether the loss depended on it.
    pub fn present(&self) -> Vec<bool> {
        match &self.sums {
            Sums::Host(gradients) => gradients.slots.iter().map(|slot| slot.present).collect(),
            #[cfg(feature = "cuda")]
            Sums::Cuda(gradients) => gradients.present().to_vec(),
        }
    }

    /// Sums over all ranks, bucket by bucket from the last one on. A rank whose loss did not depend on a parameter adds zeros.
    pub fn reduce(&mut self, ranks: &dyn Communicator) -> Result<()> {
        match &mut self.sums {
            Sums::Host(gradients) => {
                gradients.clear_absent();
                gradients.buckets.iter_mut().rev().try_for_each(|bucket| ranks.all_reduce(bucket))
            }
            #[cfg(feature = "cuda")]
            Sums::Cuda(gradients) => gradients.reduce(ranks),
        }
    }

    /// After the sum: per parameter, whether the loss of any rank depended on it.
    pub fn set_present(&mut self, present: &[bool]) {
        match &mut self.sums {
            Sums::Host(gradients) => gradients.slots.iter_mut().zip(present).for_each(|(slot, any)| slot.present = *any),
            #[cfg(feature = "cuda")]
            Sums::Cuda(gradients) => gradients.set_present(present),
        }
    }

    /// The buckets, to be brought back by [`Self::put_buckets`]; none where the gradients lie on a GPU.
    pub(crate) fn take_buckets(&mut self) -> Option<Buckets> {
        match &mut self.sums {
            Sums::Host(gradients) => Some(std::mem::take(gradients)),
            #[cfg(feature = "cuda")]
            Sums::Cuda(_) => None,
        }
    }

    pub(crate) fn put_buckets(&mut self, buckets: Buckets) {
        self.sums = Sums::Host(buckets);
    }

    /// The Euclidean norm over all parameters. Each parameter is summed in one order in f64, and the parameters in name
    /// order, so that the value does not depend on the number of threads. On CUDA the host waits for it.
    pub fn norm(&self) -> Result<f64> {
        match &self.sums {
            Sums::Host(gradients) => {
                let square = |slot: &Slot| slices::sum_of_squares(gradients.values(slot).unwrap_or_default());
                let squares: Vec<f64> = gradients.slots.par_iter().map(square).collect();
                Ok(squares.iter().sum::<f64>().sqrt() * self.unscale)
            }
            #[cfg(feature = "cuda")]
            Sums::Cuda(gradients) => {
                Ok(gradients.to_host()?.iter().flatten().map(|v| slices::sum_of_squares(v)).sum::<f64>().sqrt() * self.unscale)
            }
        }
    }

    /// The first parameter, by name, whose gradient is not finite. On CUDA all gradients are copied to the host for it.
    pub fn not_finite(&self) -> Result<Option<&str>> {
        let broken = |values: &[f32]| values.iter().any(|x| !x.is_finite());
        match &self.sums {
            Sums::Host(gradients) => {
                let found = gradients.slots.iter().find(|slot| gradients.values(slot).is_some_and(broken));
                Ok(found.map(|slot| slot.name.as_str()))
            }
            #[cfg(feature = "cuda")]
            Sums::Cuda(gradients) => {
                let values = gradients.to_host()?;
                let found = values.iter().position(|v| v.as_deref().is_some_and(broken));
                Ok(found.map(|i| gradients.name(i)))
            }
        }
    }

    /// Clipping these to a norm of `limit`; 0 switches it off.
    pub(crate) fn clipping(&self, limit: f64) -> Clipping {
        Clipping { limit, unscale: self.unscale }
    }

    /// Per parameter in name order: the sum, or `None` if the loss did not depend on it.
    pub(crate) fn slices(&self) -> Result<Vec<Option<&[f32]>>> {
        match &self.sums {
            Sums::Host(gradients) => Ok(gradients.all().collect()),
            #[cfg(feature = "cuda")]
            Sums::Cuda(_) => Err(Error::Input("gradients of parameters on the CPU, found some on CUDA".to_owned())),
        }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn flat(&self) -> Result<&FlatGradients> {
        match &self.sums {
            Sums::Cuda(gradients) => Ok(gradients),
            Sums::Host(_) => Err(Error::Input("gradients of parameters on CUDA, found some on the CPU".to_owned())),
        }
    }
}

/// What happens to gradients on their way into the update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Clipping {
    /// The largest norm over all parameters; 0 switches clipping off.
    pub limit: f64,
    /// What the sums are multiplied by first: one over the weight of all losses and over the loss scale.
    pub unscale: f64,
}

impl Clipping {
    /// The factor to apply to the sums of gradients that have this norm.
    pub fn factor(self, norm: f64) -> f32 {
        let clip = self.limit > 0.0 && norm > self.limit;
        (if clip { self.limit / norm * self.unscale } else { self.unscale }) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn vars() -> BTreeMap<String, Var> {
        let var = |v: &[f32]| Var::new(v, &Device::Cpu).unwrap();
        [("a", var(&[3.0])), ("b", var(&[0.0, 4.0])), ("unused", var(&[1.0]))].map(|(n, v)| (n.to_owned(), v)).into()
    }

    /// The loss 0.5 * (|a|^2 + |b|^2): its gradient is the parameters themselves.
    fn backward(vars: &BTreeMap<String, Var>) -> GradStore {
        let square = |n: &str| vars[n].sqr().unwrap().sum_all().unwrap();
        ((square("a") + square("b")).unwrap() * 0.5).unwrap().backward().unwrap()
    }

    #[test]
    fn micro_batches_add_up() {
        let vars = vars();
        let mut grads = Gradients::zeros(&vars).unwrap();
        grads.add(&vars, &backward(&vars)).unwrap();
        assert_eq!(grads.norm().unwrap(), 5.0);
        grads.add(&vars, &backward(&vars)).unwrap();
        assert_eq!(grads.norm().unwrap(), 10.0);
        grads.divide_by(4.0);
        assert_eq!(grads.norm().unwrap(), 2.5);
        assert_eq!(grads.present(), [true, true, false]);
        assert_eq!(grads.slices().unwrap()[1], Some([0.0, 8.0].as_slice()));
        grads.clear();
        assert_eq!(grads.norm().unwrap(), 0.0);
        assert_eq!(grads.present(), [false; 3]);
    }

    #[test]
    fn buckets_are_full_and_in_order() {
        assert_eq!(bucket_sizes([3, 4, 5, 20, 1, 1].into_iter(), 8), [7, 5, 20, 2]);
        assert_eq!(bucket_sizes(std::iter::empty(), 8), [] as [usize; 0]);
        let vars = vars();
        for limit in [1, 2, 3, 100] {
            let mut buckets = Buckets::new(&vars, limit);
            let grads = backward(&vars);
            let pairs: Vec<_> = vars.iter().map(|(name, var)| (name, grads.get(var))).collect();
            buckets.add(&pairs).unwrap();
            let found: Vec<_> = buckets.all().collect();
            assert_eq!(found, [Some([3.0].as_slice()), Some([0.0, 4.0].as_slice()), None], "buckets of {limit}");
        }
    }

    #[test]
    fn ranks_sum_what_either_of_them_has() {
        use crate::parallel::threads;
        let sums = std::thread::scope(|scope| {
            let rank = |rank: threads::ThreadRank| {
                let vars = vars();
                let mut grads = Gradients::zeros(&vars).unwrap();
                // Rank 1 did not use b: what an older step left there must not count.
                grads.add(&vars, &backward(&vars)).unwrap();
                grads.clear();
                let mut used = vars.clone();
                if rank.rank() == 1 {
                    used.insert("b".to_owned(), Var::new(&[0f32, 0.0], &Device::Cpu).unwrap());
                }
                grads.add(&used, &backward(&vars)).unwrap();
                assert_eq!(grads.present(), [true, rank.rank() == 0, false]);
                grads.reduce(&rank).unwrap();
                grads.set_present(&[true, true, false]);
                grads.slices().unwrap().into_iter().map(|s| s.map(<[f32]>::to_vec)).collect::<Vec<_>>()
            };
            let threads: Vec<_> =
                threads::group(2, std::time::Duration::from_secs(60)).into_iter().map(|r| scope.spawn(move || rank(r))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(sums[0], [Some(vec![6.0]), Some(vec![0.0, 4.0]), None]);
        assert_eq!(sums[0], sums[1]);
    }

    #[test]
    fn the_tensor_that_broke_is_named() {
        let vars = vars();
        vars["b"].set(&candle_core::Tensor::new(&[0.0, f32::NAN], &Device::Cpu).unwrap()).unwrap();
        let mut grads = Gradients::zeros(&vars).unwrap();
        grads.add(&vars, &backward(&vars)).unwrap();
        assert!(!grads.norm().unwrap().is_finite());
        assert_eq!(grads.not_finite().unwrap(), Some("b"));
    }

    #[test]
    fn clipping_keeps_the_direction() {
        let factor = |limit, unscale, norm| Clipping { limit, unscale }.factor(norm);
        assert_eq!(factor(1.0, 1.0, 5.0), 0.2);
        assert_eq!(factor(1.0, 1.0, 0.5), 1.0);
        assert_eq!(factor(0.0, 1.0, 5.0), 1.0);
        // Two losses that each weigh one: half of the sum counts.
        assert_eq!(factor(1.0, 0.5, 0.5), 0.5);
        assert_eq!(factor(1.0, 0.5, 4.0), 0.125);
    }
}

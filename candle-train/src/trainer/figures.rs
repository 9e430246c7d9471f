//! The loss and the metrics of a step, from all its micro batches and ranks.

use crate::metrics::StepFigures;
use crate::parallel::{Communicator, gather};
use crate::task::{Loss, Reduction};
use candle_core::Tensor;
use candle_models::{Error, Result};

/// How metrics are reduced, in the order in which they are read.
const REDUCTIONS: [Reduction; 3] = [Reduction::Mean, Reduction::Sum, Reduction::Max];

/// Figures of one reduction.
#[derive(Debug, Default)]
struct Group {
    names: Vec<&'static str>,
    values: Option<Tensor>,
}

/// Figures as they add up over micro batches, on the device. The first of the means is the loss.
#[derive(Debug, Default)]
pub(super) struct Figures {
    groups: [Group; REDUCTIONS.len()],
}

impl Figures {
    /// Takes in a micro batch.
    pub fn add(&mut self, loss: &Loss) -> Result<()> {
        let device = loss.value.device();
        for (group, reduction) in self.groups.iter_mut().zip(REDUCTIONS) {
            group.names.clear();
            let mut parts = Vec::new();
            if reduction == Reduction::Mean {
                group.names.push("loss");
                parts.push(loss.value.detach().reshape(1)?);
            }
            for metric in loss.metrics.iter().filter(|metric| metric.reduction == reduction) {
                if metric.values.dims() != [metric.names.len()] {
                    let (expected, found) = (format!("{} values, one a name", metric.names.len()), format!("{:?}", metric.values.dims()));
                    return Err(Error::tensor(metric.names.join(", "), expected, found));
                }
                group.names.extend(metric.names);
                parts.push(metric.values.detach().to_device(device)?);
            }
            if parts.is_empty() {
                continue;
            }
            let values = Tensor::cat(&parts, 0)?;
            let values = if reduction == Reduction::Mean { (values * loss.weight)? } else { values };
            group.values = Some(match group.values.take() {
                None => values,
                Some(before) if reduction == Reduction::Max => before.maximum(&values)?,
                Some(before) => (before + values)?,
            });
        }
        Ok(())
    }

    /// Means and sums side by side: what ranks add up.
    pub fn to_sum(&self) -> Result<Tensor> {
        let [means, sums, _] = &self.groups;
        let parts: Vec<&Tensor> = means.values.iter().chain(&sums.values).collect();
        match parts[..] {
            [] => Err(Error::config("trainer.accumulate", "expected at least 1, found 0")),
            [means] => Ok(means.clone()),
            _ => Ok(Tensor::cat(&parts, 0)?),
        }
    }

    /// Everything to be read with the step: means and sums of all ranks, the means' losses together of that weight, and this rank's maxima.
    pub fn to_read(&self, summed: &Tensor, weight: f64) -> Result<Tensor> {
        let [means, sums, maxima] = &self.groups;
        let scaled = (summed.narrow(0, 0, means.names.len())? * (1.0 / weight))?;
        if sums.values.is_none() && maxima.values.is_none() {
            return Ok(scaled);
        }
        let sums = sums.values.as_ref().map(|_| summed.narrow(0, means.names.len(), sums.names.len())).transpose()?;
        Ok(Tensor::cat(&[&scaled].into_iter().chain(&sums).chain(&maxima.values).collect::<Vec<_>>(), 0)?)
    }

    /// The figures by name, from what was read. Ranks whose tasks have maxima exchange them.
    pub fn name(&self, mut read: Vec<f32>, ranks: &dyn Communicator, into: &mut StepFigures) -> Result<()> {
        let mine = read.split_off(read.len().saturating_sub(self.groups[2].names.len()));
        if !mine.is_empty() {
            // As bits: a figure that is not a number has no other form between ranks.
            let all = gather(ranks, &mine.iter().map(|x| x.to_bits()).collect::<Vec<_>>())?;
            let largest = |i: usize| all.iter().filter_map(|rank| rank.get(i)).map(|&bits| f32::from_bits(bits)).fold(mine[i], f32::max);
            read.extend((0..mine.len()).map(largest));
        }
        let mut figures = self.groups.iter().flat_map(|group| group.names.iter().copied()).zip(read.into_iter().map(f64::from));
        into.loss = figures.next().map_or(f64::NAN, |(_, loss)| loss);
        into.parts = figures.collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::{Single, threads};
    use crate::task::Metric;
    use candle_core::Device;
    use std::time::Duration;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap()
    }

    /// A loss of `x` with a mean of `2 x`, a sum of `x` and the maxima of `x` and `-x`.
    fn loss(x: f32, weight: f64) -> Loss {
        let metrics = vec![
            Metric::max(&["largest", "least"], tensor(&[x, -x])),
            Metric::sum(&["sum"], tensor(&[x])),
            Metric::mean(&["double"], tensor(&[2.0 * x])),
        ];
        Loss { weight, metrics, ..Loss::new(tensor(&[x]).sum_all().unwrap(), 1) }
    }

    fn reduced(losses: &[(f32, f64)], ranks: &dyn Communicator, sum: impl Fn(Tensor) -> Tensor, weight: f64) -> StepFigures {
        let (mut figures, mut step) = (Figures::default(), StepFigures::default());
        losses.iter().for_each(|&(x, weight)| figures.add(&loss(x, weight)).unwrap());
        let read = figures.to_read(&sum(figures.to_sum().unwrap()), weight).unwrap().to_vec1().unwrap();
        figures.name(read, ranks, &mut step).unwrap();
        step
    }

    fn check(step: &StepFigures, expected: [f64; 5]) {
        let names = ["double", "sum", "largest", "least"];
        let found: Vec<f64> = std::iter::once(step.loss).chain(names.map(|name| step.parts[name])).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn micro_batches_are_reduced_by_kind() {
        let step = reduced(&[(3.0, 0.25), (-1.0, 0.75)], &Single, |sum| sum, 1.0);
        check(&step, [0.0, 0.0, 2.0, 3.0, 1.0]);
        // Of two micro batches that count whole, the mean.
        check(&reduced(&[(3.0, 1.0), (4.0, 1.0)], &Single, |sum| sum, 2.0), [3.5, 7.0, 7.0, 4.0, -3.0]);
    }

    #[test]
    fn ranks_are_reduced_by_kind() {
        let steps = std::thread::scope(|scope| {
            let rank = |rank: threads::ThreadRank| {
                let x = [3.0, -1.0][rank.rank()];
                let sum = |sum: Tensor| {
                    let mut values = sum.to_vec1::<f32>().unwrap();
                    rank.all_reduce(&mut values).unwrap();
                    tensor(&values)
                };
                reduced(&[(x, 0.5)], &rank, sum, 1.0)
            };
            let threads: Vec<_> = threads::group(2, Duration::from_secs(60)).into_iter().map(|r| scope.spawn(move || rank(r))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        steps.iter().for_each(|step| check(step, [1.0, 2.0, 2.0, 3.0, 1.0]));
    }

    #[test]
    fn a_value_without_a_name_is_refused() {
        let metrics = vec![Metric::sum(&["a", "b"], tensor(&[1.0]))];
        let error = Figures::default().add(&Loss { metrics, ..loss(1.0, 1.0) }).unwrap_err().to_string();
        assert!(error.contains("a, b: expected 2 values, one a name, found [1]"), "{error}");
    }
}

//! Policies that another one learns from beside what was recorded (knowledge distillation, Hinton et al. 2015).
//!
//! Several policies together know more of people whom they never met than each of them, but take the time of all. One that is trained towards the
//! mean of their probabilities keeps a part of that in the time of one (`weights/policy` has how much).

use super::loader::Batch;
use crate::carried::Carried;
use crate::task::StepDone;
use candle_core::{D, Device, Tensor};
use candle_models::exec::tensors::Regularisation;
use candle_models::policy::Policy;
use candle_models::policy::actions::{ACTION, BUTTONS, COMPONENTS, LOGITS};
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};

/// A policy and what it remembers of every lane's game.
struct Teacher {
    policy: Policy,
    carried: Carried,
}

/// Policies whose probabilities are learnt. They see what the learner sees, mirrored games and their middles included, and nothing is dropped.
#[derive(Default)]
pub struct Teachers(Vec<Teacher>);

impl Teachers {
    /// Of these policies, for so many lanes.
    ///
    /// # Errors
    /// If the device has no memory for what they remember.
    pub fn new(policies: Vec<Policy>, lanes: usize, device: &Device) -> Result<Self> {
        let teacher = |policy: Policy| Ok(Teacher { carried: Carried::new(policy.signature(), lanes, device)?, policy });
        Ok(Self(policies.into_iter().map(teacher).collect::<Result<_>>()?))
    }

    /// What was recorded less what they expect, as the logits lie, `[n, 81]`: 1 for a class that was recorded, minus the mean of their probabilities
    /// of it. `None` where there are no teachers.
    ///
    /// # Errors
    /// If the device fails.
    pub fn surprise(&mut self, batch: &Batch) -> Result<Option<Tensor>> {
        let noise = Regularisation { dropout: 0.0, drop_ids: 0.0, random: Random::new(0), first_row: batch.first_row };
        let n = batch.resets.len();
        let mut sum: Option<Tensor> = None;
        for Teacher { policy, carried } in &mut self.0 {
            let outputs = carried.unroll(policy, &batch.inputs, &batch.resets, &noise)?;
            let expected = probabilities(&outputs.get("logits")?.reshape((n, LOGITS))?.detach())?;
            sum = Some(sum.map_or(Ok(expected.clone()), |sum| sum + &expected)?);
        }
        let Some(sum) = sum else { return Ok(None) };
        let recorded = recorded(&batch.inputs.get("action")?.reshape((n, ACTION))?)?.to_device(sum.device())?;
        Ok(Some((recorded - (sum / self.0.len() as f64)?)?))
    }

    /// Begins every lane anew.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forget(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(|teacher| teacher.carried.forget())
    }

    /// As [`Carried::after_step`].
    ///
    /// # Errors
    /// As there.
    pub fn after_step(&mut self, step: &StepDone) -> Result<()> {
        self.0.iter_mut().try_for_each(|teacher| teacher.carried.after_step(step))
    }

    /// What they remember, beside that of the learner.
    pub fn save(&self, rows: &mut NamedTensors) {
        for (i, teacher) in self.0.iter().enumerate() {
            teacher.carried.rows().iter().for_each(|(name, tensor)| _ = rows.insert(format!("{}{name}", prefix(i)), tensor.clone()));
        }
    }

    /// Goes on from what was saved, and gives back what is the learner's.
    ///
    /// # Errors
    /// If it is that of other teachers.
    pub fn restore(&mut self, rows: &NamedTensors) -> Result<NamedTensors> {
        let part =
            |prefix: &str| rows.iter().filter_map(|(name, tensor)| Some((name.strip_prefix(prefix)?.to_owned(), tensor.clone()))).collect();
        for (i, teacher) in self.0.iter_mut().enumerate() {
            teacher.carried.restore(&part(&prefix(i)))?;
        }
        let taught = |name: &str| (0..self.0.len()).any(|i| name.starts_with(&prefix(i)));
        Ok(rows.iter().filter(|(name, _)| !taught(name)).map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect())
    }
}

/// What the state of a teacher is called in a checkpoint, before the name of the tensor.
fn prefix(teacher: usize) -> String {
    format!("teachers.{teacher}.")
}

/// Of buttons the probability of "pressed", of the others that of each class, `[n, 81]`.
fn probabilities(logits: &Tensor) -> Result<Tensor> {
    let buttons = (logits.narrow(D::Minus1, 0, BUTTONS)?.neg()?.exp()? + 1.0)?.recip()?;
    let of = |i: usize| {
        let logits = logits.narrow(D::Minus1, COMPONENTS[i].logit, COMPONENTS[i].logits())?;
        let powers = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
        Ok(powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)?)
    };
    let all = std::iter::once(Ok(buttons)).chain((BUTTONS..ACTION).map(of)).collect::<Result<Vec<_>>>()?;
    Ok(Tensor::cat(&all, D::Minus1)?)
}

/// 1 where a button was pressed and for the class of each other component, `[n, 81]` on the host.
fn recorded(actions: &Tensor) -> Result<Tensor> {
    let classes = actions.to_vec2::<u32>()?;
    let mut values = vec![0f32; classes.len() * LOGITS];
    for (row, classes) in values.chunks_exact_mut(LOGITS).zip(&classes) {
        for (component, class) in COMPONENTS.iter().zip(classes) {
            match component.logits() {
                1 => row[component.logit] = *class as f32,
                n if (*class as usize) < n => row[component.logit + *class as usize] = 1.0,
                n => return Err(Error::Input(format!("class {class} of {}, which has {n}", component.name))),
            }
        }
    }
    Ok(Tensor::from_vec(values, (classes.len(), LOGITS), &Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::loss::components;
    use candle_models::policy::actions::group;

    /// The loss of recorded classes and the sum over the logits are together the cross entropy with what the teachers expect.
    #[test]
    fn the_whole_target_is_what_teachers_expect() {
        let (n, random) = (6, Random::new(3));
        let normal = |name: &str| {
            let values: Vec<f32> = (0..n * LOGITS).map(|i| 2.0 * random.stream(name).normal(i as u64)).collect();
            Tensor::from_vec(values, (n, LOGITS), &Device::Cpu).unwrap()
        };
        let class = |i: usize| random.stream("class").below(i as u64, COMPONENTS[i % ACTION].classes.into());
        let actions = Tensor::from_vec((0..n * ACTION).map(class).collect::<Vec<u32>>(), (n, ACTION), &Device::Cpu).unwrap();
        let (own, taught) = (normal("own"), normal("taught"));
        let surprise = (recorded(&actions).unwrap() - probabilities(&taught).unwrap()).unwrap();
        let hard = components(&own, &actions, 0.0).unwrap().sum(1).unwrap().to_vec1::<f32>().unwrap();
        let sums = (own.clone() * surprise).unwrap().sum(1).unwrap().to_vec1::<f32>().unwrap();
        let [own, taught] = [own, taught].map(|logits| logits.to_vec2::<f32>().unwrap());
        for row in 0..n {
            let mut expected = 0.0;
            for (i, component) in COMPONENTS.iter().enumerate() {
                let at = component.logit..component.logit + component.logits();
                // A button's logit is that of "pressed", beside 0.
                let with_both = |logits: &[f32]| {
                    if group(i) == 0 { vec![0.0, f64::from(logits[0])] } else { logits.iter().map(|x| f64::from(*x)).collect() }
                };
                let [own, taught] = [&own[row], &taught[row]].map(|logits| with_both(&logits[at.clone()]));
                let log_sum = |logits: &[f64]| logits.iter().map(|x| x.exp()).sum::<f64>().ln();
                let (own_sum, taught_sum) = (log_sum(&own), log_sum(&taught));
                expected += own.iter().zip(&taught).map(|(own, taught)| (taught - taught_sum).exp() * (own_sum - own)).sum::<f64>();
            }
            let found = f64::from(hard[row]) + f64::from(sums[row]);
            assert!((found - expected).abs() < 1e-4 * expected, "row {row}: found {found}, expected {expected}");
        }
        let wrong = Tensor::full(17u32, (1, ACTION), &Device::Cpu).unwrap();
        assert!(recorded(&wrong).unwrap_err().to_string().contains("class 17 of main_x"));
    }
}

//! The loss of imitation: how unlikely the recorded action was.
//!
//! Per frame, the negative log-likelihood of the eight buttons (Bernoulli), four stick axes and the shoulder (categorical), in
//! nats.

use super::config::LossConfig;
use super::loader::Batch;
use candle_core::{D, Tensor};
use candle_models::Result;
use candle_models::ops::{self, LossGroup};
use candle_models::policy::actions::{ACTION, BUTTONS, COMPONENTS, GROUPS, LOGITS};
use candle_models::tensors::NamedTensors;

/// The reported components: the buttons together, then one group for each column.
const COMPONENT_GROUPS: [LossGroup; GROUPS] = {
    const BUTTON: LossGroup = LossGroup { logit: 0, column: 0, columns: BUTTONS, classes: 2 };
    let mut groups = [BUTTON; GROUPS];
    let mut g = 1;
    while g < GROUPS {
        let column = BUTTONS + g - 1;
        groups[g] = LossGroup { logit: COMPONENTS[column].logit, column, columns: 1, classes: COMPONENTS[column].classes as usize };
        g += 1;
    }
    groups
};
const _: () = assert!(BUTTONS + GROUPS - 1 == ACTION);

/// Negative log-likelihood in nats, `[n, 6]` in the order of the reported components, from `logits` `[n, 81]` and the
/// actions' classes `[n, 13]`. `smoothing` moves that much probability from the recorded class to all classes alike; it acts
/// on the categorical components only, because on a Bernoulli it would move the optimum.
pub fn components(logits: &Tensor, actions: &Tensor, smoothing: f64) -> Result<Tensor> {
    Ok(ops::cross_entropy(logits, actions, &COMPONENT_GROUPS, smoothing)?)
}

/// The mean over rows with their weights, `[n, k]` to `[k]`; zero if all weights are. `total` is their sum, which the host knows:
/// asking a device for it would wait for all its work. The weights may lie on the host.
fn weighted_mean(values: &Tensor, weights: &Tensor, total: f32) -> Result<Tensor> {
    let weights = weights.to_device(values.device())?;
    Ok(values.broadcast_mul(&weights.unsqueeze(1)?)?.sum(0)?.affine(1.0 / f64::from(total.max(f32::MIN_POSITIVE)), 0.0)?)
}

/// The loss of a policy's `outputs` on a batch, a scalar, and its parts without a gradient, `[7]`: the components, then the squared error
/// of `value` against the returns.
///
/// With teachers, whose `surprise` `[n, 81]` [`Teachers::surprise`](super::teachers::Teachers::surprise) gives, a share of the target is what they
/// expect in place of what was recorded. The logarithm of the sum is the same for every target, so the loss differs from that of the recorded
/// classes by a sum over the logits. The parts stay those of the recorded classes.
pub fn imitation(outputs: &NamedTensors, batch: &Batch, config: &LossConfig, surprise: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
    let n = batch.resets.len();
    let logits = outputs.get("logits")?.reshape((n, LOGITS))?;
    let actions = batch.inputs.get("action")?.reshape((n, ACTION))?;
    let mean = |values: &Tensor| weighted_mean(values, &batch.weights, batch.weight);
    let groups = mean(&components(&logits, &actions, config.smoothing)?)?;
    let returns = batch.returns.to_device(logits.device())?.unsqueeze(D::Minus1)?;
    let error = mean(&(outputs.get("value")?.reshape((n, 1))? - returns)?.sqr()?)?;
    let parts = Tensor::cat(&[groups.detach(), error.detach()], 0)?;
    let mut loss = (groups.sum_all()? + (error.sum_all()? * config.value)?)?;
    if let Some(surprise) = surprise {
        let taught = mean(&(logits.to_dtype(surprise.dtype())? * surprise)?.sum_keepdim(D::Minus1)?)?.sum_all()?;
        loss = (loss + (taught * config.teachers)?)?;
    }
    Ok((loss, parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Var};
    use candle_models::policy::actions::{Action, nll};
    use candle_models::random::Random;

    fn case(n: usize, scale: f32) -> (Vec<f32>, Vec<u32>) {
        let random = Random::new(3);
        let logits = (0..n * LOGITS).map(|i| random.stream("logits").normal(i as u64) * scale).collect();
        let class = |i: usize| random.stream("class").below(i as u64, COMPONENTS[i % ACTION].classes.into());
        (logits, (0..n * ACTION).map(class).collect())
    }

    fn tensors(logits: &[f32], actions: &[u32]) -> (Var, Tensor) {
        let n = logits.len() / LOGITS;
        let logits = Var::from_slice(logits, (n, LOGITS), &Device::Cpu).unwrap();
        (logits, Tensor::from_slice(actions, (n, ACTION), &Device::Cpu).unwrap())
    }

    #[test]
    fn equals_the_likelihood_of_the_action_space() {
        for scale in [1.0, 200.0] {
            let (logits, actions) = case(16, scale);
            let (l, a) = tensors(&logits, &actions);
            let found = components(&l, &a, 0.0).unwrap().to_vec2::<f32>().unwrap();
            for (i, found) in found.iter().enumerate() {
                let row: &[f32; LOGITS] = logits[i * LOGITS..(i + 1) * LOGITS].try_into().unwrap();
                let expected = nll(row, &Action::from_ids(&actions[i * ACTION..(i + 1) * ACTION]).unwrap());
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "row {i}: expected {expected}, found {found}");
                }
            }
        }
    }

    #[test]
    fn the_gradient_is_probability_minus_target() {
        let (mut logits, actions) = case(4, 2.0);
        logits[0] = 0.0; // Where max(z, 0) and |z| have a corner, the sum has none.
        let (l, a) = tensors(&logits, &actions);
        let grads = components(&l, &a, 0.0).unwrap().sum_all().unwrap().backward().unwrap();
        let found: Vec<f32> = grads.get(&l).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        for row in 0..4 {
            let x = &logits[row * LOGITS..(row + 1) * LOGITS];
            for (i, c) in COMPONENTS.iter().enumerate() {
                let class = actions[row * ACTION + i] as usize;
                let slot = &x[c.logit..c.logit + c.logits()];
                for k in 0..c.logits() {
                    let (p, target) = match c.logits() {
                        1 => (1.0 / (1.0 + (-slot[0]).exp()), class == 1),
                        _ => (slot[k].exp() / slot.iter().map(|v| v.exp()).sum::<f32>(), class == k),
                    };
                    let expected = p - f32::from(u8::from(target));
                    let found = found[row * LOGITS + c.logit + k];
                    assert!((found - expected).abs() < 1e-5, "{} class {k}: expected {expected}, found {found}", c.name);
                }
            }
        }
    }

    #[test]
    fn smoothing_spares_the_buttons() {
        let (logits, actions) = case(8, 2.0);
        let (l, a) = tensors(&logits, &actions);
        let plain = components(&l, &a, 0.0).unwrap().to_vec2::<f32>().unwrap();
        let smooth = components(&l, &a, 0.1).unwrap().to_vec2::<f32>().unwrap();
        for (plain, smooth) in plain.iter().zip(&smooth) {
            assert_eq!(plain[0], smooth[0]);
            assert_ne!(plain[1], smooth[1]);
        }
        // By the definition: (1 - e) of the class's loss and e of the mean over all classes.
        let all: f32 = (0..5)
            .map(|class| {
                let mut actions = actions.clone();
                actions[ACTION - 1] = class;
                let (l, a) = tensors(&logits, &actions);
                components(&l, &a, 0.0).unwrap().to_vec2::<f32>().unwrap()[0][GROUPS - 1] / 5.0
            })
            .sum();
        let expected = 0.9 * plain[0][GROUPS - 1] + 0.1 * all;
        assert!((smooth[0][GROUPS - 1] - expected).abs() < 1e-5);
    }

    #[test]
    fn rows_without_weight_do_not_count() {
        let values = Tensor::new(&[[1f32, 2.0], [5.0, 6.0], [9.0, 9.0]], &Device::Cpu).unwrap();
        let weights = Tensor::new(&[1f32, 1.0, 0.0], &Device::Cpu).unwrap();
        assert_eq!(weighted_mean(&values, &weights, 2.0).unwrap().to_vec1::<f32>().unwrap(), [3.0, 4.0]);
        let none = Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap();
        assert_eq!(weighted_mean(&values, &none, 0.0).unwrap().to_vec1::<f32>().unwrap(), [0.0, 0.0]);
    }
}

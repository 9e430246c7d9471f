//! How likely a network finds actions, how sure it is, and how far it is from another one: of all components of an action together, by the outputs
//! `logits` and `gaussian` that networks with such heads give.

use candle_core::{D, Tensor};
use candle_models::agent::Component;
use candle_models::ops::gaussian::gaussian_nats;
use candle_models::ops::{LossGroup, cross_entropy};
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};

/// Distributions over actions, a row for each step.
#[derive(Debug, Clone)]
pub struct Distribution {
    groups: Vec<LossGroup>,
    /// The first number and how many, of each component of numbers.
    spans: Vec<[usize; 2]>,
    logits: Option<Tensor>,
    gaussian: Option<Tensor>,
}

impl Distribution {
    /// From a network's outputs, `[rows, ...]` or `[lanes, steps, ...]`.
    ///
    /// # Errors
    /// If an output is missing.
    pub fn new(components: &[Component], outputs: &NamedTensors) -> Result<Self> {
        let (mut groups, mut spans) = (Vec::new(), Vec::new());
        let (mut logit, mut column, mut number) = (0, 0, 0);
        for component in components {
            let (choice, numbers) = (component.choice(column), component.numbers());
            match numbers {
                0 => groups.push(LossGroup { logit, column, columns: choice.columns, classes: choice.classes }),
                _ => spans.push([number, numbers]),
            }
            (logit, column, number) = (logit + choice.logits(), column + choice.columns, number + numbers);
        }
        let rows = |name: &str| -> Result<Tensor> {
            let tensor = outputs.get(name)?;
            Ok(tensor.reshape(((), tensor.dim(D::Minus1)?))?)
        };
        let logits = if groups.is_empty() { None } else { Some(rows("logits")?) };
        let gaussian = if spans.is_empty() { None } else { Some(rows("gaussian")?) };
        Ok(Self { groups, spans, logits, gaussian })
    }

    /// The same where classes cannot be chosen: `mask` `[rows, logits]` is added to the logits, a large negative number at each of those.
    ///
    /// # Errors
    /// If it has another shape.
    pub fn masked(mut self, mask: &Tensor) -> Result<Self> {
        if let Some(logits) = &mut self.logits {
            *logits = (&*logits + mask)?;
        }
        Ok(self)
    }

    /// The tensors behind it: logits, then means and logarithms of deviations.
    fn parts(&self) -> impl Iterator<Item = &Tensor> {
        self.logits.iter().chain(&self.gaussian)
    }

    /// Without gradients.
    #[must_use]
    pub fn detach(mut self) -> Self {
        self.logits = self.logits.map(|logits| logits.detach());
        self.gaussian = self.gaussian.map(|gaussian| gaussian.detach());
        self
    }

    /// Whether all of it is finite.
    ///
    /// # Errors
    /// If the device fails.
    pub fn is_finite(&self) -> Result<bool> {
        for part in self.parts() {
            if !part.detach().abs()?.max_all()?.to_scalar::<f32>()?.is_finite() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The logarithm of the probability of actions, `[rows]`: classes `[rows, columns]` on the host, numbers `[rows, numbers]`.
    ///
    /// # Errors
    /// If they have other shapes.
    pub fn log_probability(&self, classes: &Tensor, numbers: &Tensor) -> Result<Tensor> {
        let mut nats = Vec::new();
        if let Some(logits) = &self.logits {
            nats.push(cross_entropy(logits, classes, &self.groups, 0.0)?.sum(1)?);
        }
        if let Some(gaussian) = &self.gaussian {
            for &[start, n] in &self.spans {
                nats.push(gaussian_nats(&self.span(gaussian, start, n)?, &numbers.narrow(1, start, n)?)?.sum(1)?);
            }
        }
        sum(nats)?.neg().map_err(Error::from)
    }

    /// Means and logarithms of deviations of a component `[rows, 2 n]`. In the output they lie component by component.
    fn span(&self, gaussian: &Tensor, start: usize, n: usize) -> Result<Tensor> {
        Ok(gaussian.narrow(1, 2 * start, 2 * n)?)
    }

    /// Its entropy in nats, `[rows]`. That of numbers is the density's, bounds left aside.
    ///
    /// # Errors
    /// If the device fails.
    pub fn entropy(&self) -> Result<Tensor> {
        let mut nats = Vec::new();
        for group in &self.groups {
            let log = self.log_shares(group)?;
            nats.push((log.exp()? * &log)?.sum(D::Minus1)?.sum(1)?.neg()?);
        }
        if let Some(gaussian) = &self.gaussian {
            for &[start, n] in &self.spans {
                let log = self.span(gaussian, start, n)?.narrow(1, n, n)?;
                nats.push((log.sum(1)? + 0.5 * n as f64 * (1.0 + (2.0 * std::f64::consts::PI).ln()))?);
            }
        }
        sum(nats)
    }

    /// The divergence of Kullback and Leibler of another distribution over the same components from it, `KL(self || other)` `[rows]`.
    ///
    /// # Errors
    /// If the other one has other components.
    pub fn divergence(&self, other: &Self) -> Result<Tensor> {
        let mut nats = Vec::new();
        for group in &self.groups {
            let (log, of_other) = (self.log_shares(group)?, other.log_shares(group)?);
            nats.push((log.exp()? * (&log - of_other)?)?.sum(D::Minus1)?.sum(1)?);
        }
        if let (Some(mine), Some(others)) = (&self.gaussian, &other.gaussian) {
            for &[start, n] in &self.spans {
                let (p, q) = (self.span(mine, start, n)?, other.span(others, start, n)?);
                let (p_mean, p_log, q_mean, q_log) = (p.narrow(1, 0, n)?, p.narrow(1, n, n)?, q.narrow(1, 0, n)?, q.narrow(1, n, n)?);
                let spread = ((p_log.affine(2.0, 0.0)?.exp()? + (p_mean - q_mean)?.sqr()?)? * q_log.affine(-2.0, 0.0)?.exp()?)?;
                nats.push((spread.affine(0.5, -0.5)? + (q_log - p_log)?)?.sum(1)?);
            }
        }
        sum(nats)
    }

    /// Logarithms of the probabilities of a component's classes, `[rows, columns, classes]`; of two classes that of class 1 has the logit.
    fn log_shares(&self, group: &LossGroup) -> Result<Tensor> {
        let Some(logits) = &self.logits else { return Err(Error::tensor("logits", "to be present", "nothing")) };
        let (rows, width) = (logits.dim(0)?, if group.classes == 2 { 1 } else { group.classes });
        let logits = logits.narrow(1, group.logit, group.columns * width)?.reshape((rows, group.columns, width))?;
        let logits = if width == 1 { Tensor::cat(&[&logits.zeros_like()?, &logits], 2)? } else { logits };
        let most = logits.max_keepdim(2)?.detach();
        let shifted = logits.broadcast_sub(&most)?;
        let total = shifted.exp()?.sum_keepdim(2)?.log()?;
        Ok(shifted.broadcast_sub(&total)?)
    }
}

fn sum(parts: Vec<Tensor>) -> Result<Tensor> {
    let mut parts = parts.into_iter();
    let first = parts.next().ok_or_else(|| Error::config("action", "expected at least one component"))?;
    parts.try_fold(first, |sum, part| Ok((sum + part)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn components() -> Vec<Component> {
        vec![
            Component::Discrete { name: "a".to_owned(), classes: 3 },
            Component::Gaussian { name: "g".to_owned(), columns: 2, low: None, high: None },
            Component::Binary { name: "b".to_owned(), count: 1 },
        ]
    }

    fn distribution(logits: [f32; 4], gaussian: [f32; 4]) -> Distribution {
        let tensor = |name: &str, row: [f32; 4]| (name.to_owned(), Tensor::new(&[row], &Device::Cpu).unwrap());
        let outputs = NamedTensors::from_iter([tensor("logits", logits), tensor("gaussian", gaussian)]);
        Distribution::new(&components(), &outputs).unwrap()
    }

    /// Beside sums over all classes, and an integral over numbers drawn from the distribution itself.
    #[test]
    fn entropy_and_divergence_are_their_definitions() {
        let (p, q) =
            (distribution([0.3, -1.0, 2.0, 0.7], [0.5, -1.0, 0.2, -0.4]), distribution([1.0, 0.0, -0.5, -1.2], [0.0, 0.0, 0.1, 0.3]));
        let scalar = |tensor: Tensor| f64::from(tensor.to_vec1::<f32>().unwrap()[0]);
        let log = |of: &Distribution, a: u32, b: u32, x: [f32; 2]| {
            let classes = Tensor::new(&[[a, b]], &Device::Cpu).unwrap();
            scalar(of.log_probability(&classes, &Tensor::new(&[x], &Device::Cpu).unwrap()).unwrap())
        };
        // Mass, entropy and divergence by quadrature over both numbers.
        let (mut mass, mut entropy, mut divergence, width) = (0.0, 0.0, 0.0, 0.25f32);
        for a in 0..3 {
            for b in 0..2 {
                for i in -32..32 {
                    for j in -32..32 {
                        let x = [0.5 + width * i as f32, -1.0 + width * j as f32];
                        let (of_p, of_q) = (log(&p, a, b, x), log(&q, a, b, x));
                        let share = of_p.exp() * f64::from(width * width);
                        (mass, entropy, divergence) = (mass + share, entropy - share * of_p, divergence + share * (of_p - of_q));
                    }
                }
            }
        }
        assert!((mass - 1.0).abs() < 1e-4, "{mass}");
        let found = [scalar(p.entropy().unwrap()), scalar(p.divergence(&q).unwrap())];
        assert!((found[0] - entropy).abs() < 1e-3, "{} {entropy}", found[0]);
        assert!((found[1] - divergence).abs() < 1e-3, "{} {divergence}", found[1]);
        assert!(scalar(p.divergence(&p).unwrap()).abs() < 1e-6);
    }

    #[test]
    fn masked_classes_are_never_taken() {
        let p = distribution([0.3, -1.0, 2.0, 0.7], [0.0; 4]);
        let masked = p.masked(&Tensor::new(&[[0f32, 0.0, -1e9, 0.0]], &Device::Cpu).unwrap()).unwrap();
        let log = masked.log_shares(&masked.groups[0]).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!((log[0].exp() + log[1].exp() - 1.0).abs() < 1e-6 && log[2] < -1e8, "{log:?}");
        assert!(masked.is_finite().unwrap() && masked.entropy().unwrap().to_vec1::<f32>().unwrap()[0].is_finite());
    }
}

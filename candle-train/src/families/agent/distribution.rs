//! How likely a network finds actions, how sure it is, and how far it is from another one: of all components of an action together, by the outputs
//! `logits` and `gaussian` that networks with such heads give.

use candle_core::{D, Tensor};
use candle_models::agent::Component;
use candle_models::ops::gaussian::gaussian_nats;
use candle_models::ops::softmax::log_softmax;
use candle_models::ops::{LossGroup, cross_entropy};
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};

/// A component of an action as a part of the outputs.
#[derive(Debug, Clone, Copy)]
pub enum Part {
    /// Its logits and its columns of classes.
    Classes(LossGroup),
    /// The first of its numbers, and how many. In the output they lie component by component, means and behind them logarithms of deviations.
    Numbers(usize, usize),
}

/// The components of an action as parts of the outputs, in their order.
pub fn parts(components: &[Component]) -> Vec<Part> {
    let (mut logit, mut column, mut number) = (0, 0, 0);
    let part = |component: &Component| {
        let (choice, numbers) = (component.choice(column), component.numbers());
        let part = match numbers {
            0 => Part::Classes(LossGroup { logit, column, columns: choice.columns, classes: choice.classes }),
            _ => Part::Numbers(number, numbers),
        };
        (logit, column, number) = (logit + choice.logits(), column + choice.columns, number + numbers);
        part
    };
    components.iter().map(part).collect()
}

/// Distributions over actions, a row for each step.
#[derive(Debug, Clone)]
pub struct Distribution {
    parts: Vec<Part>,
    /// `[rows, logits]`, where there are components of classes.
    pub logits: Option<Tensor>,
    /// `[rows, 2 numbers]`, where there are components of numbers.
    pub gaussian: Option<Tensor>,
}

impl Distribution {
    /// From a network's outputs, `[rows, ...]` or `[lanes, steps, ...]`.
    ///
    /// # Errors
    /// If an output is missing.
    pub fn new(components: &[Component], outputs: &NamedTensors) -> Result<Self> {
        let parts = parts(components);
        let rows = |name: &str, wanted: bool| -> Result<Option<Tensor>> {
            if !wanted {
                return Ok(None);
            }
            let tensor = outputs.get(name)?;
            Ok(Some(tensor.reshape(((), tensor.dim(D::Minus1)?))?))
        };
        let classes = parts.iter().any(|part| matches!(part, Part::Classes(_)));
        let numbers = parts.iter().any(|part| matches!(part, Part::Numbers(..)));
        Ok(Self { logits: rows("logits", classes)?, gaussian: rows("gaussian", numbers)?, parts })
    }

    /// The components as parts of the outputs.
    pub fn parts(&self) -> &[Part] {
        &self.parts
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

    /// Without gradients.
    #[must_use]
    pub fn detach(mut self) -> Self {
        self.logits = self.logits.map(|logits| logits.detach());
        self.gaussian = self.gaussian.map(|gaussian| gaussian.detach());
        self
    }

    /// Negative log-likelihood of each component of actions in nats, `[rows, components]`: classes `[rows, columns]` on the host, where there are
    /// components of classes, and numbers `[rows, numbers]` where there are such.
    ///
    /// # Errors
    /// If they are missing or have other shapes.
    pub fn nats(&self, classes: Option<&Tensor>, numbers: Option<&Tensor>) -> Result<Tensor> {
        let missing = |name: &str| Error::tensor(name, "to be present", "nothing");
        let group = |part: &Part| if let Part::Classes(group) = part { Some(*group) } else { None };
        let groups: Vec<LossGroup> = self.parts.iter().filter_map(group).collect();
        let of_classes = match &self.logits {
            Some(logits) => Some(cross_entropy(logits, classes.ok_or_else(|| missing("action"))?, &groups, 0.0)?),
            None => None,
        };
        let Some(gaussian) = &self.gaussian else {
            return of_classes.ok_or_else(|| Error::config("action", "expected at least one component"));
        };
        let numbers = numbers.ok_or_else(|| missing("numbers"))?;
        let (mut nats, mut next) = (Vec::new(), 0);
        for part in &self.parts {
            match (part, &of_classes) {
                (Part::Numbers(start, n), _) => nats.push(gaussian_nats(&span(gaussian, *start, *n)?, &numbers.narrow(1, *start, *n)?)?),
                (Part::Classes(_), Some(classes)) => {
                    nats.push(classes.narrow(1, next, 1)?);
                    next += 1;
                }
                (Part::Classes(_), None) => return Err(missing("logits")),
            }
        }
        Ok(Tensor::cat(&nats, 1)?)
    }

    /// The logarithm of the probability of actions, `[rows]`, as [`nats`](Self::nats) takes them.
    ///
    /// # Errors
    /// Those of [`nats`](Self::nats).
    pub fn log_probability(&self, classes: &Tensor, numbers: &Tensor) -> Result<Tensor> {
        Ok(self.nats(Some(classes), Some(numbers))?.sum(1)?.neg()?)
    }

    /// Its entropy in nats, `[rows]`. That of numbers is the density's, bounds left aside.
    ///
    /// # Errors
    /// If the device fails.
    pub fn entropy(&self) -> Result<Tensor> {
        self.sum(|part| match part {
            Part::Classes(group) => {
                let log = self.log_shares(group)?;
                Ok((log.exp()? * &log)?.sum(D::Minus1)?.sum(1)?.neg()?)
            }
            Part::Numbers(start, n) => {
                let [_, log] = self.normal(*start, *n)?;
                Ok((log.sum(1)? + 0.5 * *n as f64 * (1.0 + (2.0 * std::f64::consts::PI).ln()))?)
            }
        })
    }

    /// The divergence of Kullback and Leibler of another distribution over the same components from it, `KL(self || other)` `[rows]`.
    ///
    /// # Errors
    /// If the other one has other components.
    pub fn divergence(&self, other: &Self) -> Result<Tensor> {
        self.sum(|part| match part {
            Part::Classes(group) => {
                let (log, of_other) = (self.log_shares(group)?, other.log_shares(group)?);
                Ok((log.exp()? * (&log - of_other)?)?.sum(D::Minus1)?.sum(1)?)
            }
            Part::Numbers(start, n) => {
                let ([p_mean, p_log], [q_mean, q_log]) = (self.normal(*start, *n)?, other.normal(*start, *n)?);
                let spread = ((p_log.affine(2.0, 0.0)?.exp()? + (p_mean - q_mean)?.sqr()?)? * q_log.affine(-2.0, 0.0)?.exp()?)?;
                Ok((spread.affine(0.5, -0.5)? + (q_log - p_log)?)?.sum(1)?)
            }
        })
    }

    /// The sum over the components of what `f` says of each, `[rows]`.
    fn sum(&self, f: impl Fn(&Part) -> Result<Tensor>) -> Result<Tensor> {
        let mut parts = self.parts.iter().map(f);
        let first = parts.next().ok_or_else(|| Error::config("action", "expected at least one component"))?;
        parts.try_fold(first?, |sum, part| Ok((sum + part?)?))
    }

    /// Logarithms of the probabilities of a component's classes, `[rows, columns, classes]`; of two classes that of class 1 has the logit.
    fn log_shares(&self, group: &LossGroup) -> Result<Tensor> {
        let logits = self.logits.as_ref().ok_or_else(|| Error::tensor("logits", "to be present", "nothing"))?;
        let (rows, width) = (logits.dim(0)?, if group.classes == 2 { 1 } else { group.classes });
        let logits = logits.narrow(1, group.logit, group.columns * width)?.reshape((rows, group.columns, width))?;
        log_softmax(&if width == 1 { Tensor::cat(&[&logits.zeros_like()?, &logits], 2)? } else { logits })
    }

    /// Means and logarithms of deviations of a component's numbers, `[rows, n]` each.
    fn normal(&self, start: usize, n: usize) -> Result<[Tensor; 2]> {
        let gaussian = self.gaussian.as_ref().ok_or_else(|| Error::tensor("gaussian", "to be present", "nothing"))?;
        let of = span(gaussian, start, n)?;
        Ok([of.narrow(1, 0, n)?, of.narrow(1, n, n)?])
    }
}

/// Means and logarithms of deviations of a component, `[rows, 2 n]`.
fn span(gaussian: &Tensor, start: usize, n: usize) -> Result<Tensor> {
    Ok(gaussian.narrow(1, 2 * start, 2 * n)?)
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
        let Part::Classes(group) = masked.parts()[0] else { panic!("the first component has classes") };
        let log = masked.log_shares(&group).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!((log[0].exp() + log[1].exp() - 1.0).abs() < 1e-6 && log[2] < -1e8, "{log:?}");
        assert!(masked.entropy().unwrap().to_vec1::<f32>().unwrap()[0].is_finite());
    }
}

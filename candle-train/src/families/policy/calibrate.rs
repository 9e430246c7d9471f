//! How far a trained network is to be believed about people whom it never met.
//!
//! A network that imitates few people is surer of itself with others than it should be, and of some components more than of others. So for each
//! component one factor is fitted on held-out games (temperature scaling, Guo et al. 2017): the logits become `L(0) + factor * (L(1) - L(0))`,
//! where `L(1)` are those of the policy and `L(0)` what is left of them without its last layers: the count tables of its prior, or zeros. The
//! factor is folded into the last layers, so that a calibrated policy is one like any other.

use super::dataset::Dataset;
use super::evaluate::over_frames;
use crate::parallel::Communicator;
use candle_core::{Device, Tensor};
use candle_models::nn::Params;
use candle_models::policy::actions::{Action, GROUP_NAMES, GROUPS, LOGITS, nll};
use candle_models::policy::{Policy, PolicyConfig};
use candle_models::{Error, Result};
use std::collections::BTreeMap;

/// Factors that are tried: 0, 0.05 and so on to 2.
const TRIED: usize = 41;
const STEP: f64 = 0.05;

/// The parameters of a policy by name.
type Parameters = BTreeMap<String, Tensor>;

/// The factor of each component under which the recorded actions of the games are most likely, the smaller of two that are equally good.
///
/// # Errors
/// If the parameters are not those of the configuration, or there is no frame.
pub fn fit(
    config: &PolicyConfig,
    parameters: &Parameters,
    data: &Dataset,
    device: &Device,
    ranks: &dyn Communicator,
) -> Result<[f64; GROUPS]> {
    let policy = |factor: f64| Policy::new(config, &Params::given(scaled(config, parameters, &[factor; GROUPS])?, device));
    let add = |losses: &mut Vec<[f64; GROUPS]>, _: &Action, action: &Action, logits: &[[f32; LOGITS]]| {
        let [without, with] = logits else { return };
        losses.resize(TRIED, [0.0; GROUPS]);
        for (i, sums) in losses.iter_mut().enumerate() {
            let factor = (i as f64 * STEP) as f32;
            let logits = std::array::from_fn(|k| without[k] + factor * (with[k] - without[k]));
            sums.iter_mut().zip(nll(&logits, action)).for_each(|(sum, loss)| *sum += f64::from(loss));
        }
    };
    let found = over_frames(&[&policy(0.0)?, &policy(1.0)?], data, ranks, add)?;
    let total = |i: usize, g: usize| found.iter().map(|losses| losses[i][g]).sum::<f64>();
    if found.is_empty() {
        return Err(Error::Input("no frame to calibrate a policy on".to_owned()));
    }
    let best = |g: usize| (0..TRIED).min_by(|a, b| total(*a, g).total_cmp(&total(*b, g))).unwrap_or(0);
    Ok(std::array::from_fn(|g| best(g) as f64 * STEP))
}

/// Factors that somebody else has fitted.
///
/// # Errors
/// If there is not one for each component, or one is out of the range that is tried.
pub fn checked(factors: &[f64]) -> Result<[f64; GROUPS]> {
    let most = (TRIED - 1) as f64 * STEP;
    match <[f64; GROUPS]>::try_from(factors) {
        Ok(factors) if factors.iter().all(|factor| (0.0..=most).contains(factor)) => Ok(factors),
        _ => {
            let expected = format!("expected {GROUPS} numbers from 0 to {most} ({}), found {factors:?}", GROUP_NAMES.join(", "));
            Err(Error::config("--factors", expected))
        }
    }
}

/// The parameters with the last layer of each component multiplied by its factor.
///
/// # Errors
/// If a last layer is missing.
pub fn scaled(config: &PolicyConfig, parameters: &Parameters, factors: &[f64; GROUPS]) -> Result<Parameters> {
    let mut scaled = parameters.clone();
    for (layer, factor) in config.last_layers().iter().zip(factors) {
        for name in [format!("{layer}.weight"), format!("{layer}.bias")] {
            let tensor = scaled.get_mut(&name).ok_or_else(|| Error::tensor(&name, "a layer of a policy's heads", "none"))?;
            *tensor = (&*tensor * *factor)?;
        }
    }
    Ok(scaled)
}

/// `buttons 0.60, main x 0.80, ...`.
pub fn describe(factors: &[f64; GROUPS]) -> String {
    GROUP_NAMES.iter().zip(factors).map(|(name, factor)| format!("{name} {factor:.2}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::evaluate;
    use crate::families::policy::shards::testing;
    use crate::parallel::{Single, threads};
    use candle_models::policy::BackboneConfig;
    use candle_models::policy::Heads;
    use candle_models::random::Random;

    fn nats(config: &PolicyConfig, parameters: &Parameters, data: &Dataset) -> [f64; GROUPS] {
        let policy = Policy::new(config, &Params::given(parameters.clone(), &Device::Cpu)).unwrap();
        evaluate::policy(&policy, data, &Single).unwrap().likelihood.all().nll
    }

    #[test]
    fn no_other_factor_makes_what_was_recorded_more_likely() {
        let data = Dataset::new(&testing::shards(&[150, 90]), &[], 0).unwrap();
        let small = PolicyConfig { hidden: 16, embedding: 4, backbone: BackboneConfig::Gru { layers: 1 }, ..PolicyConfig::default() };
        for config in
            [small.clone(), PolicyConfig { heads: Heads::Independent, ..small.clone() }, PolicyConfig { prior: true, ..small.clone() }]
        {
            let params = Params::init(Random::new(3), &Device::Cpu);
            Policy::new(&config, &params).unwrap();
            let parameters: Parameters = params.vars().into_iter().map(|(name, var)| (name, var.as_tensor().clone())).collect();
            // As random as it is, it is far too sure of itself.
            let parameters = scaled(&config, &parameters, &[4.0; GROUPS]).unwrap();
            let factors = fit(&config, &parameters, &data, &Device::Cpu, &Single).unwrap();
            assert!(factors.iter().all(|factor| (0.0..1.0).contains(factor)), "{factors:?}");
            let best = nats(&config, &scaled(&config, &parameters, &factors).unwrap(), &data);
            for step in [-STEP, STEP] {
                let other = nats(&config, &scaled(&config, &parameters, &factors.map(|factor| factor + step)).unwrap(), &data);
                for (g, (best, other)) in best.iter().zip(other).enumerate().filter(|(g, _)| factors[*g] + step >= 0.0) {
                    assert!(*best <= other * (1.0 + 1e-6), "{}: {best} nats at {}, {other} beside it", GROUP_NAMES[g], factors[g]);
                }
            }
            // What is calibrated stays as it is.
            let again =
                fit(&config, &scaled(&config, &parameters, &factors.map(|factor| factor.max(STEP))).unwrap(), &data, &Device::Cpu, &Single)
                    .unwrap();
            for (again, factor) in again.iter().zip(factors).filter(|(_, factor)| *factor > 4.0 * STEP) {
                assert!((again - 1.0).abs() < 0.5 * STEP / factor + STEP, "{again} after {factor}");
            }
        }
    }

    #[test]
    fn any_number_of_ranks_finds_the_same_factors() {
        let data = Dataset::new(&testing::shards(&[40, 70, 33, 60, 50, 45, 30, 35, 55]), &[], 0).unwrap();
        let config = PolicyConfig { hidden: 16, embedding: 4, backbone: BackboneConfig::Gru { layers: 1 }, ..PolicyConfig::default() };
        let params = Params::init(Random::new(3), &Device::Cpu);
        Policy::new(&config, &params).unwrap();
        let parameters: Parameters = params.vars().into_iter().map(|(name, var)| (name, var.as_tensor().clone())).collect();
        let fit = |ranks: &dyn Communicator| super::fit(&config, &parameters, &data, &Device::Cpu, ranks).unwrap();
        let expected = fit(&Single);
        std::thread::scope(|scope| {
            let ranks = threads::group(2, std::time::Duration::from_secs(120));
            let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || assert_eq!(fit(&rank), expected))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let none = super::fit(&config, &parameters, &Dataset::new(&[], &[], 0).unwrap(), &Device::Cpu, &Single);
        assert_eq!(none.unwrap_err().to_string(), "no frame to calibrate a policy on");
    }

    #[test]
    fn factors_are_one_a_component() {
        assert_eq!(checked(&[0.0, 0.5, 1.0, 1.5, 2.0, 0.25]).unwrap(), [0.0, 0.5, 1.0, 1.5, 2.0, 0.25]);
        for wrong in [&[0.5; 5][..], &[0.5; 7], &[0.5, 0.5, 0.5, 0.5, 0.5, 2.1], &[0.5, 0.5, f64::NAN, 0.5, 0.5, 0.5], &[]] {
            let said = checked(wrong).unwrap_err().to_string();
            assert!(said.starts_with("config: --factors: expected 6 numbers from 0 to 2 (buttons, main x,"), "{said}");
        }
    }
}

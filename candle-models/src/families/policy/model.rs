//! The policy network: observation to trunk, trunk to action and value.

use super::actions::{ACTION, Action, COMPONENTS, LOGITS};
use super::config::PolicyConfig;
use super::embedding::{ACTION_STATES, CHARACTERS, ID_LIMITS, IDS, WIDTH};
use super::heads;
use crate::Result;
use crate::bundle::{Bundle, ParameterSpec};
use crate::exec::Executor;
use crate::exec::program::Output;
use crate::network::{Layers, Network};
use crate::nn::{ActionHeads, Backbone, Init, Linear, Norm, Params};
use crate::ops::Activation;
use crate::signature::{Signature, TensorSpec};
use candle_core::{Device, Tensor};

/// Action states among the ids; they come first.
const ACTION_STATE_IDS: usize = 4;
/// Width of the layer inside the value head.
const VALUE: usize = 128;

/// Observation to action.
///
/// ```
/// use candle_models::policy::{Policy, PolicyConfig};
/// use candle_models::prelude::*;
/// use candle_models::random::Random;
/// # fn main() -> candle_models::Result<()> {
/// let policy = Policy::new(&PolicyConfig::default(), &Params::init(Random::new(0), &Device::Cpu))?;
/// assert_eq!((policy.family(), policy.config().hidden), ("policy", 256));
/// let state = policy.initial_state(2)?; // of two games
/// assert_eq!(state.len(), policy.signature().state.len());
/// # Ok(())
/// # }
/// ```
pub type Policy = Network<PolicyLayers>;

/// Tables and floats into one layer with layer norm and GELU, the backbone, the heads.
pub struct PolicyLayers {
    config: PolicyConfig,
    action_states: Tensor,
    characters: Tensor,
    input: Linear,
    input_norm: Norm,
    backbone: Backbone,
    heads: ActionHeads,
    value: [Linear; 2],
    /// With a prior: the number of the state that keeps the action of the last frame.
    kept: Option<usize>,
}

impl Policy {
    /// The network with parameters from `params`.
    pub fn new(config: &PolicyConfig, params: &Params) -> Result<Self> {
        config.validate()?;
        let (first, trunk, embedding) = (config.backbone.inputs(config.hidden), config.trunk(), config.embedding);
        let classes = COMPONENTS.map(|component| u32::from(component.classes));
        let mut state = Vec::new();
        let backbone = Backbone::new(&config.backbone, config.hidden, params, &mut state)?;
        let kept = config.prior.then_some(state.len());
        state.extend(kept.map(|_| TensorSpec::f32("kept_action", &[ACTION]).says("classes of the last action, each plus one")));
        let signature = Signature {
            inputs: vec![
                TensorSpec::f32("features", &[WIDTH]).says("what the game shows, as the embedding lays it out"),
                TensorSpec::u32("ids", &[IDS]).below(&ID_LIMITS).says("action states and characters, as the embedding lays them out"),
                TensorSpec::u32("previous_action", &[ACTION])
                    .below(&classes)
                    .or_u32(&Action::default().to_ids())
                    .says("classes of the last action"),
                TensorSpec::u32("action", &[ACTION])
                    .below(&classes)
                    .or_sample()
                    .says("classes that are given; SAMPLE: chosen by the policy"),
                TensorSpec::f32("uniform", &[ACTION])
                    .within(-1.0..1.0)
                    .or_f32(&[-1.0; ACTION])
                    .says("where the policy chooses: a number from 0 draws a class, one below 0 takes the most likely"),
            ],
            outputs: vec![TensorSpec::f32("logits", &[LOGITS]), TensorSpec::f32("value", &[1]), TensorSpec::u32("action", &[ACTION])],
            state,
        };
        let table = |name: &str, rows: u32| params.get(name, &[rows as usize, embedding], Init::Normal(0.1));
        let layers = PolicyLayers {
            action_states: table("action_states", ACTION_STATES)?,
            characters: table("characters", CHARACTERS)?,
            input: Linear::new(WIDTH + IDS * embedding, first, &params.pp("input"))?,
            input_norm: Norm::layer(first, &params.pp("input_norm"))?,
            backbone,
            heads: heads::new(config, &params.pp("heads"))?,
            value: [Linear::new(trunk, VALUE, &params.pp("value.0"))?, Linear::new(VALUE, 1, &params.pp("value.1"))?],
            kept,
            config: config.clone(),
        };
        Self::of((super::FAMILY, config), signature, params.device(), layers)
    }

    /// Names and shapes of the parameters of a policy of that configuration, without memory for them.
    pub fn parameters(config: &PolicyConfig) -> Result<Vec<ParameterSpec>> {
        let params = Params::description();
        Self::new(config, &params)?;
        Ok(params.specs())
    }

    /// The policy of a bundle on the CPU, every tensor checked before memory is taken for it.
    pub fn load(bundle: &Bundle) -> Result<Self> {
        Self::load_on(bundle, &Device::Cpu)
    }

    /// [`Self::load`] onto a device, in f32.
    pub fn load_on(bundle: &Bundle, device: &Device) -> Result<Self> {
        bundle.require_family(&[super::FAMILY])?;
        let config: PolicyConfig = bundle.config()?;
        let parameters = bundle.read_parameters(&Self::parameters(&config)?)?;
        Self::new(&config, &Params::stored(parameters, device))
    }

    /// The configuration that it was made from.
    pub fn config(&self) -> &PolicyConfig {
        &self.layers().config
    }
}

impl Layers for PolicyLayers {
    /// Logits, value and action.
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let (features, ids) = (e.input("features")?, e.indices("ids")?);
        let ids = e.drop_indices(&ids, ACTION_STATE_IDS, ACTION_STATES - 1)?;
        let (states, characters) = (&self.action_states, &self.characters);
        let tables = [states, states, states, states, characters, characters];
        let x = e.lookup_linear(&features, &ids, &tables, &self.input)?;
        let x = e.norm(&x, &self.input_norm, Activation::Gelu)?;
        let x = e.dropout(&x)?;
        let trunk = self.backbone.forward(e, &x)?;
        // The value is a by-product of imitation: it must not bend the trunk.
        let critic = e.detach(&trunk)?;
        let critic = e.linear(&critic, &self.value[0], Activation::Relu)?;
        let value = e.linear(&critic, &self.value[1], Activation::None)?;
        let trunk = e.dropout(&trunk)?;
        let before = match self.kept {
            Some(state) => {
                let previous = e.indices("previous_action")?;
                Some(e.before(&previous, state)?)
            }
            None => None,
        };
        let (logits, action) = self.heads.forward(e, &trunk, before.as_ref())?.into_classes()?;
        Ok(vec![Output::Floats(logits), Output::Floats(value), Output::Indices(action)])
    }
}

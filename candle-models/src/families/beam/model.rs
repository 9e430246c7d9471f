//! The networks at both ends of a link (arXiv 2401.13587, schemes C1 to C3).
//!
//! The user measures with beam `w_t` what the base station sends with beam `f_t` of its codebook, and its network
//! ([`UserEquipment`]) turns the measurement into the next beam. Behind the last one it decides ([`Decision`]) which beam to keep and what
//! to tell the base station, whose network ([`BaseStation`]) turns that into the beam to transmit with. Shape letters: N_RX and
//! N_TX antennas, T measurements, C beams of the codebook, R numbers of all measurements in antenna space, F numbers of feedback.
//!
//! Additions to the published method, each of which a configuration can leave out: see [`View`](super::View) and
//! [`DecisionConfig`](super::DecisionConfig); and the codebook starts from random beams.

use super::config::{BeamConfig, Scheme};
use super::decision::{BaseStation, Decision};
use super::user::UserEquipment;
use super::{Codebook, Episodes, FAMILY, Tapes};
use crate::Result;
use crate::bundle::{Bundle, ParameterSpec};
use crate::network::Network;
use crate::nn::{Init, Params};
use candle_core::{D, DType, Device, Tensor};

/// What both ends have decided behind the last measurement.
#[derive(Debug, Clone)]
pub struct Decided {
    /// The user's beam, `[B, 2 N_RX]`.
    pub receive: Tensor,
    /// The beams that it was chosen from, `[B, K, 2 N_RX]`: with scheme C1 and an estimate one for every beam of the codebook.
    pub candidates: Tensor,
    /// What the user's network says, `[B, F]`: with scheme C1 a score for every beam of the codebook.
    pub feedback: Tensor,
    /// The base station's beam, `[B, 2 N_TX]`: with scheme C1 that of the highest score.
    pub transmit: Tensor,
}

/// What the names of the parameters of the user's network begin with.
const USER: &str = "user";
/// What is decided behind the last measurement: by the user, and where the base station hears of it by the base station.
const DECISION: &str = "decision";
const BASE: &str = "base";

/// Everything that is learned.
///
/// ```
/// use candle_models::beam::Beam;
/// use candle_models::bundle::Bundle;
/// use candle_models::candle_core::Device;
/// # fn main() -> candle_models::Result<()> {
/// let controller = Beam::load(&Bundle::open("../weights/beam-c3")?, &Device::Cpu)?;
/// assert_eq!(controller.sweep()?.elements(), 32); // the learned beams that the base station sweeps
/// # Ok(())
/// # }
/// ```
pub struct Beam {
    /// The configuration that it was made from.
    pub config: BeamConfig,
    /// The user's network while it measures.
    pub user: Network<UserEquipment>,
    /// The user's network behind the last measurement.
    pub decision: Network<Decision>,
    /// The base station's network; scheme C1 has none.
    pub base: Option<Network<BaseStation>>,
    /// The beams that the base station sweeps, before they are made such as its array can form, `[C, 2 N_TX]`.
    pub codebook: Tensor,
    /// The beam of the first measurement, before that, `[1, 2 N_RX]`.
    pub first: Tensor,
}

impl Beam {
    /// The networks with parameters from `params`.
    pub fn new(config: &BeamConfig, params: &Params) -> Result<Self> {
        config.validate()?;
        let first = params.get("first", &[1, config.receive_width()], Init::Normal(1.0))?;
        let start = Codebook::generate(&config.codebook, &config.channel.transmit)?;
        let rows = if config.is_relative() { 1 } else { start.count() };
        let shape = [rows, config.transmit_width()];
        let codebook = match config.scheme {
            Scheme::C3 => params.get("codebook", &shape, Init::Values(&|i, _| start.beams()[i]))?,
            Scheme::C1 | Scheme::C2 => Tensor::from_slice(start.beams(), &shape, params.device())?.to_dtype(first.dtype())?,
        };
        let base = match config.scheme {
            Scheme::C1 => None,
            Scheme::C2 | Scheme::C3 => Some(BaseStation::network(config, &params.pp(BASE))?),
        };
        Ok(Self {
            user: UserEquipment::network(config, &params.pp(USER))?,
            decision: Decision::network(config, || swept(config, &codebook), &params.pp(DECISION))?,
            base,
            codebook,
            first,
            config: config.clone(),
        })
    }

    /// Names and shapes of the parameters, without memory for them.
    pub fn parameters(config: &BeamConfig) -> Result<Vec<ParameterSpec>> {
        let params = Params::description();
        Self::new(config, &params)?;
        Ok(params.specs())
    }

    /// Whether a parameter belongs to the user's network while it measures: it is used at every measurement, the others once an episode.
    pub fn measures(parameter: &str) -> bool {
        parameter.split('.').next() == Some(USER)
    }

    /// Whether a parameter belongs to what is decided behind the last measurement, at either end. Some do neither: the beams that are swept.
    pub fn decides(parameter: &str) -> bool {
        matches!(parameter.split('.').next(), Some(DECISION | BASE))
    }

    /// The networks of a bundle on a device, every tensor checked before memory is taken for it.
    pub fn load(bundle: &Bundle, device: &Device) -> Result<Self> {
        bundle.require_family(&[FAMILY])?;
        let config: BeamConfig = bundle.config()?;
        let parameters = bundle.read_parameters(&Self::parameters(&config)?)?;
        Self::new(&config, &Params::stored(parameters, device))
    }

    /// Runs episodes to their end, with gradients (but for the choice of scheme C1).
    ///
    /// # Errors
    /// If the episodes do not fit each other or the arrays; the field is named.
    pub fn align(&self, episodes: &Episodes, tapes: &Tapes) -> Result<Decided> {
        self.decide(&self.measure(episodes, tapes)?, episodes, tapes)
    }

    /// What both ends decide by the measurements of episodes and the state behind them, as [`Self::measure`] gives them, with gradients.
    ///
    /// # Errors
    /// If they do not fit the networks.
    pub fn decide(&self, seen: &Tensor, episodes: &Episodes, tapes: &Tapes) -> Result<Decided> {
        let [candidates, feedback] = self.decision.decide(seen, &episodes.snr_db, tapes)?;
        let chosen = feedback.argmax(D::Minus1)?;
        let (rows, count, width) = candidates.dims3()?;
        let receive = if count > 1 {
            let number = chosen.reshape((rows, 1, 1))?.broadcast_as((rows, 1, width))?.contiguous()?;
            candidates.gather(&number, 1)?.squeeze(1)?
        } else {
            candidates.squeeze(1)?
        };
        let transmit = match &self.base {
            Some(base) => {
                let beam = base.feed(&self.config.feedback.send(&feedback)?, tapes)?;
                let beam = if self.config.is_relative() { moved(&self.config, &beam, &episodes.start)? } else { beam };
                self.config.transmit_weights.rounded(&beam)?
            }
            None => self.swept()?.index_select(&chosen, 0)?,
        };
        Ok(Decided { receive, candidates, feedback, transmit })
    }

    /// The codebook as it is swept: beams `[C, 2 N_TX]` that the array can form.
    pub fn swept(&self) -> Result<Tensor> {
        swept(&self.config, &self.codebook)
    }

    /// The same on the host, in f32.
    ///
    /// # Errors
    /// A beam that is not finite.
    pub fn sweep(&self) -> Result<Codebook> {
        let beams = self.swept()?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        Codebook::new(self.config.channel.transmit.elements(), beams)
    }

    /// The beam of the first measurement, `[1, 2 N_RX]`.
    pub fn first_beam(&self) -> Result<Tensor> {
        self.config.receive_weights.form(&self.first)
    }
}

/// A codebook as it is swept: beams `[C, 2 N_TX]` that the array can form.
fn swept(config: &BeamConfig, codebook: &Tensor) -> Result<Tensor> {
    if !config.is_relative() {
        return config.transmit_weights.form(codebook);
    }
    let numbers: Vec<u32> = (0..config.codebook.count() as u32).collect();
    let all = codebook.broadcast_as((numbers.len(), config.transmit_width()))?;
    config.transmit_weights.form(&moved(config, &all, &numbers)?)
}

/// Beams `[rows, 2 N_TX]` with their direction cosines moved by 2 / C, as often as `times` says for each.
fn moved(config: &BeamConfig, beams: &Tensor, times: &[u32]) -> Result<Tensor> {
    let phases: Vec<f32> = times.iter().flat_map(|times| config.shift(*times)).collect();
    let shape = (times.len(), config.transmit_width() / 2, 2);
    let phases = Tensor::from_vec(phases, shape, &Device::Cpu)?.to_device(beams.device())?.to_dtype(beams.dtype())?;
    let beams = beams.reshape(shape)?;
    let part = |x: &Tensor, i: usize| x.narrow(2, i, 1);
    let (x, y, cos, sin) = (part(&beams, 0)?, part(&beams, 1)?, part(&phases, 0)?, part(&phases, 1)?);
    let moved = [((&x * &cos)? - (&y * &sin)?)?, ((x * sin)? + (y * cos)?)?];
    Ok(Tensor::cat(&moved, 2)?.flatten_from(1)?)
}

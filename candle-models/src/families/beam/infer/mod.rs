//! Beam controllers in the command `candle-infer`: they run on channels and on what was measured on them.

mod compare;
mod episode;
mod generate;
mod links;
mod passes;
mod picture;
mod posterior;
mod sweeps;

use super::channel::noise_deviation;
use super::{Beam, BeamConfig, BeamFamily};
use crate::bundle::Bundle;
use crate::cli;
use crate::infer::{Call, Comparison, Finish, Help, InferFamily, Opened, Reader, Rehearsal, Work};
use crate::registry::Family;
use crate::signature::Signature;
use crate::tensors::NamedTensors;
use anyhow::Result;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use compare::OnLinks;
use generate::Generate;
use links::Links;
use std::path::PathBuf;

/// Options of `run` and `demo`.
#[derive(Args, Default)]
pub struct Options {
    /// with a beam controller that of channels, first beams and noise [default: 0].
    #[arg(long)]
    seed: Option<u64>,
    /// With a beam controller, the signal-to-noise ratio in dB where a file does not say it [default: 10].
    #[arg(long, value_name = "DB", allow_negative_numbers = true, value_parser = snr_db)]
    snr: Option<f32>,
    /// With a beam controller, its measurements alone: the final beams are those with the largest mean gain in dB over the channels that the measurements allow
    /// (10 ms for 16 of them), in place of those that its networks decide on.
    #[arg(long)]
    posterior: bool,
    /// With a beam controller, a page with a picture of one episode: the beams that were measured with, directions that the measurements leave, the final beams.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Number of the episode on the page [default: 0].
    #[arg(long, value_name = "N", requires = "html")]
    episode: Option<usize>,
}

/// A signal-to-noise ratio in dB as typed.
fn snr_db(text: &str) -> Result<f32> {
    let snr_db = text.parse()?;
    noise_deviation(snr_db)?;
    Ok(snr_db)
}

impl InferFamily for BeamFamily {
    fn help(&self) -> Help {
        Help {
            run: "a beam controller on channels or measurements, episode by episode",
            inputs: "A beam controller also takes channels [B, S, N_RX, N_TX, 2] of S = 1 or T and more steps, or the measurements \
                     [B, T, 2] of a sweep with the beams [B, T, 2 N_RX] that they were made with (those that the network asks for, if \
                     left out); with both, the first beam start and snr_db, one for each. Without inputs it draws channels like those \
                     of its training.",
        }
    }

    fn options(&self, command: Command) -> Command {
        Options::augment_args(command)
    }

    fn reads(&self, tensors: &NamedTensors, signature: &Signature) -> bool {
        !signature.inputs.iter().any(|spec| tensors.contains(&spec.name))
    }

    fn draws(&self) -> bool {
        true
    }

    fn reader(&self, call: &Call) -> Result<Box<dyn Reader>> {
        let options = Options::from_arg_matches(call.options)?;
        Ok(Box::new(Links::new(call.opened, &options, call.place, call.every)?))
    }

    /// Makes of the network's beam the one that the user's array is set to; leaves everything else as it is.
    fn finish(&self, bundle: &Bundle) -> Result<Finish> {
        let weights = bundle.config::<BeamConfig>()?.receive_weights;
        Ok(Box::new(move |name, values| {
            if name == "beam" {
                weights.round(values);
            }
        }))
    }

    fn work(&self, bundle: &Bundle) -> crate::Result<Work> {
        let parameters = self.parameters(bundle)?;
        let measurements = bundle.config::<BeamConfig>()?.measurements;
        // The user's network in every frame, which is a measurement; the others behind the last one.
        let (frame, decided) = (Work::products(&parameters, Beam::measures), Work::products(&parameters, |name| !Beam::measures(name)));
        let [each, behind, all] = [frame, decided, measurements * frame + decided].map(|n| cli::count(n as u64));
        let text = format!(
            "{each} multiply-adds per measurement (the user's network) and {behind} per episode (what both ends decide behind the last): {all} in an episode of {measurements} measurements"
        );
        let json = [("multiply_adds_per_episode", decided), ("measurements_per_episode", measurements)];
        Ok(Work { frame, text, json: json.map(|(key, n)| (key.to_owned(), n.into())).into_iter().collect() })
    }

    fn comparison(&self, original: &Opened, _: &ArgMatches) -> Result<Box<dyn Comparison>> {
        Ok(Box::new(OnLinks::new(original)?))
    }

    fn rehearsal(&self, original: &Opened) -> crate::Result<Rehearsal> {
        OnLinks::new(original)?.rehearsal()
    }

    fn generator(&self, command: Command) -> Option<Command> {
        Some(Generate::augment_args(command))
    }

    fn generate(&self, options: &ArgMatches) -> Result<()> {
        Generate::from_arg_matches(options)?.write()
    }
}

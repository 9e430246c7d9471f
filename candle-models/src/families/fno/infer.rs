//! `candle-infer fno`: an operator on another grid.

use super::{FAMILY, FnoConfig, FnoFamily};
use crate::bundle::{self, Bundle, CARD, Manifest};
use crate::infer::InferFamily;
use crate::registry::Family;
use anyhow::Result;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use std::path::PathBuf;

/// Neural operators.
#[derive(Args)]
struct Operators {
    #[command(subcommand)]
    command: Tool,
}

#[derive(Subcommand)]
enum Tool {
    /// Writes a bundle for another grid: the parameters are the same.
    Grid(Grid),
}

#[derive(Args)]
struct Grid {
    /// The operator.
    #[arg(value_name = "BUNDLE")]
    bundle: PathBuf,
    /// Places down and across, as in 32x32; 1 down for a line.
    #[arg(long, value_name = "NxM", value_parser = grid)]
    to: [usize; 2],
    /// Directory of the new bundle.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

fn grid(text: &str) -> Result<[usize; 2], String> {
    let sides = text.split_once('x').and_then(|(n, m)| Some([n.trim().parse().ok()?, m.trim().parse().ok()?]));
    sides.ok_or_else(|| format!("expected places down and across as in 32x32, found {text}"))
}

impl InferFamily for FnoFamily {
    fn tools(&self, command: Command) -> Option<Command> {
        Some(Operators::augment_args(command))
    }

    fn use_tool(&self, options: &ArgMatches) -> Result<()> {
        let Tool::Grid(grid) = Operators::from_arg_matches(options)?.command;
        grid.write()
    }
}

impl Grid {
    fn write(&self) -> Result<()> {
        let bundle = Bundle::open(&self.bundle)?;
        bundle.require_family(&[FAMILY])?;
        let config = bundle.config::<FnoConfig>()?.on_grid(self.to);
        config.validate()?;
        let parameters = bundle.read_parameters(&FnoFamily.parameters(&bundle)?)?;
        let card = bundle.read_file(CARD)?;
        bundle::save_parameters(&self.out, &Manifest::new(FAMILY, &config)?, &parameters, serde_json::Value::Null, &[(CARD, card)])?;
        println!("{}: {}", self.out.display(), config.name());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::Params;
    use crate::random::Random;
    use crate::registry::Registry;
    use candle_core::Device;

    #[test]
    fn an_operator_goes_to_another_grid_with_its_parameters() {
        let folder = tempfile::tempdir().unwrap();
        let config = FnoConfig { grid: [6, 6], modes: [4, 4], hidden: 4, layers: 1, ..FnoConfig::default() };
        let params = Params::init(Random::new(1), &Device::Cpu);
        crate::fno::Fno::new(&config, &params).unwrap();
        let tensors = params.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor())).collect();
        let small = folder.path().join("small");
        bundle::save(&small, &Manifest::new(FAMILY, &config).unwrap(), &tensors, serde_json::Value::Null, &[(CARD, b"# A card".to_vec())])
            .unwrap();
        let out = folder.path().join("large");
        Grid { bundle: small.clone(), to: grid("12x9").unwrap(), out: out.clone() }.write().unwrap();
        let large = Bundle::open(&out).unwrap();
        assert_eq!(large.config::<FnoConfig>().unwrap(), config.on_grid([12, 9]));
        assert_eq!(large.read_file(CARD).unwrap().unwrap(), b"# A card");
        let model = Registry::<dyn Family>::new([&FnoFamily]).load(&large).unwrap();
        assert_eq!(model.signature().inputs[0].shape, [12, 9, 1]);
        let error = Grid { bundle: small, to: [0, 3], out }.write().unwrap_err().to_string();
        assert!(error.contains("grid.0"), "{error}");
        assert!(grid("12").is_err() && grid("ax3").is_err());
    }
}

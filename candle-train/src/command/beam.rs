//! Training a beam controller.

use super::{End, RunArguments, command_line, conclude, place_of};
use anyhow::Result;
use candle_models::device::Purpose;
use candle_train::beam::config::RunConfig;
use candle_train::beam::export;
use candle_train::beam::run::{Plan, Trained};
use clap::Args;

#[derive(Debug, Args)]
pub struct BeamArguments {
    /// c1, c2 or c3 (the three schemes with our recipe), or paper (scheme C3 as published).
    #[arg(long, default_value = "c3")]
    preset: String,
    #[command(flatten)]
    pub(super) run: RunArguments,
}

/// Runs the command.
pub fn train(arguments: &BeamArguments) -> Result<()> {
    let asked = &arguments.run;
    let config = RunConfig::resolve(&arguments.preset, asked.file()?.as_deref(), &asked.sets)?;
    let mut plan = Plan::new(config, asked.resources("beam", Purpose::Episodes)?)?;
    plan.command = command_line(std::env::args().skip(1));
    let leads = plan.with.ranks.rank() == 0;
    if leads {
        println!("{}\n{}", plan.config.to_toml()?, plan.summary);
        println!(
            "{} parameters, {} steps of {} episodes; {}",
            plan.summary.values,
            plan.steps,
            plan.config.episode.batch,
            place_of(&plan.with)
        );
    }
    let Some(out) = asked.directory()? else { return Ok(()) };
    let (place, stop, command) = (asked.place(out), asked.stop()?, plan.command.clone());
    let trained = plan.train(&place, &stop)?;
    if !leads {
        return Ok(());
    }
    let Trained { outcome, step, shipped, time, .. } = trained;
    conclude(&End { outcome, step, shipped, time }, out, |bundle| {
        export::save(bundle, &trained, &command)?;
        Ok(trained.figures.iter().map(|(name, figure)| format!("{name} {figure:.3}\n")).collect())
    })
}

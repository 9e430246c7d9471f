//! Training a beam controller.

use super::{RunArguments, command_line, place_of, say_stopped};
use anyhow::Result;
use candle_models::device::Purpose;
use candle_train::beam::config::RunConfig;
use candle_train::beam::export;
use candle_train::beam::run::Plan;
use candle_train::trainer::with_large_stack;
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
    with_large_stack(|| {
        let trained = plan.train(&place, &stop)?;
        if !leads {
            return Ok(());
        }
        say_stopped(trained.outcome, trained.step);
        if trained.outcome.done() {
            export::save(&out.join("bundle"), &trained, &command)?;
            for (name, figure) in &trained.figures {
                println!("{name} {figure:.3}");
            }
            println!("{} steps in {:.1} s; model in {}", trained.step, trained.time.as_secs_f64(), out.join("bundle").display());
        }
        Ok(())
    })?;
    Ok(())
}

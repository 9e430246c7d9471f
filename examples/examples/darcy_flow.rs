//! A porous medium to the pressure in it: neural operators beside the solver that they stand in for, and how sure they are.
//!
//! `cargo run --release --example darcy_flow -- [--bundle DIR] [--medium N] [--places N]`
//!
//! The medium and its flow are drawn from a seed; the operators have learnt from others, on 16 by 16 places.

use anyhow::{Context, Result, bail};
use candle_core::Device;
use candle_models::bundle::Bundle;
use candle_models::engine::{Engine, Options};
use candle_models::fno::darcy::Darcy;
use candle_models::fno::metrics::relative_l2;
use candle_models::fno::physics::darcy_solution;
use candle_models::fno::{Fno, FnoConfig, FnoFamily};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::registry::Family;
use std::sync::Arc;
use std::time::Instant;

/// Deviations around its mean within which 90% of a normal distribution lie.
const MOST: f32 = 1.645;

fn main() -> Result<()> {
    let (mut bundle, mut number, mut places) = ("weights/fno-darcy-ensemble".to_owned(), 0, 16);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--bundle" => bundle = value,
            "--medium" => number = value.parse().with_context(|| format!("--medium {value}"))?,
            "--places" => places = value.parse().with_context(|| format!("--places {value}"))?,
            _ => bail!("{argument}: expected --bundle DIR, --medium N or --places N"),
        }
    }
    let darcy = Darcy { places, ..Darcy::default() };
    darcy.validate()?;
    let (mut medium, mut truth) = (vec![0.0; places * places], vec![0.0; places * places]);
    let began = Instant::now();
    darcy.generate(Random::new(2026).stream("example").at(number), &mut medium, &mut truth)?;
    let solved = began.elapsed();

    // The parameters serve any grid: the bundle's configuration moves to this one.
    let bundle = Bundle::open(bundle)?;
    let config = bundle.config::<FnoConfig>()?.on_grid([places; 2]);
    let parameters = bundle.read_tensors(&FnoFamily.parameters(&bundle)?)?;
    let model = Fno::new(&config, &Params::given(parameters, &Device::Cpu))?;
    let engine = Engine::start(Arc::new(model), &Options::default())?;
    let mut session = engine.open()?;
    session.set_f32("x", &medium)?;
    let began = Instant::now();
    session.step()?;
    let answered = began.elapsed();
    let answer = session.floats("y")?;

    let most = truth.iter().fold(0f32, |most, u| most.max(*u));
    let level = |u: &f32| char::from(b"0123456789"[(10.0 * u / most).clamp(0.0, 9.0) as usize]);
    println!("medium (# hardly lets anything through), pressure in tenths of the greatest, answer");
    let rows = medium.chunks(places).zip(truth.chunks(places).zip(answer.chunks(places)));
    for (medium, (truth, answer)) in rows.take(if places > 40 { 0 } else { places }) {
        let wall: String = medium.iter().map(|x| if *x > 0.0 { '.' } else { '#' }).collect();
        println!("{wall}  {}  {}", truth.iter().map(level).collect::<String>(), answer.iter().map(level).collect::<String>());
    }
    let coarse = darcy_solution(&darcy, &medium)?;
    println!("operator: off by {:.1}%, {answered:.1?}", 100.0 * relative_l2(answer, &truth));
    println!("finite volumes on these places: off by {:.1}%", 100.0 * relative_l2(&coarse, &truth));
    println!("the solver on places four times as fine, medium and all: {solved:.1?}");
    if let Ok(variance) = session.floats("variance") {
        let values = answer.iter().zip(&truth).zip(variance);
        let inside = values.filter(|((y, u), variance)| (*y - *u).abs() <= MOST * variance.sqrt()).count();
        println!("{:.1}% of the truth lies within the intervals that should hold 90%", 100.0 * inside as f64 / truth.len() as f64);
    }
    Ok(())
}

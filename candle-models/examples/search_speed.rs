//! How many simulations a second the tree search makes: the tree alone, below a model that answers at once, and with a perceptron of two
//! layers of 128 that the engine runs.
//!
//!     cargo run --release -p candle-models --example search_speed -- [THREADS] [EMBEDDING] [q8]
//!
//! `scripts/mctx-speed.py` prints the same for mctx. Times are the median of runs and, in brackets, the best.

use candle_models::candle_core::Device;
use candle_models::engine::{Model, Placement};
use candle_models::exec::Executor;
use candle_models::exec::program::Output;
use candle_models::network::{Layers, Network};
use candle_models::nn::{Init, Linear, Params};
use candle_models::ops::{Activation, Format};
use candle_models::random::Random;
use candle_models::search::{Expansion, Gumbel, Method, Noise, Planner, PlannerOptions, Puct, Roots, Search, Settings, Sizes};
use candle_models::signature::{Signature, TensorSpec};
use candle_models::{Error, Result};
use std::sync::Arc;
use std::time::Instant;

const ACTIONS: usize = 4;
const HIDDEN: usize = 128;

/// How a weight of so many outputs is stored.
type Stored = fn(&[f32], usize) -> Format;

/// Embedding, logits, value and reward of an input and, in the dynamics, an action.
struct Perceptron {
    embedding: usize,
    input: &'static str,
    first: Linear,
    /// What an action adds to the first layer.
    actions: Option<candle_models::candle_core::Tensor>,
    second: Linear,
    heads: Linear,
}

impl Perceptron {
    fn network(input: &'static str, embedding: usize, format: Stored) -> Result<Arc<dyn Model>> {
        let params = Params::init(Random::new(1).stream(input), &Device::Cpu);
        let dynamics = input == "embedding";
        let actions = params.get("actions", &[ACTIONS, HIDDEN], Init::Uniform(0.3))?;
        let linear = |name, inputs, outputs| {
            let layer = Linear::new(inputs, outputs, &params.pp(name))?;
            let format = format(&layer.weight.flatten_all()?.to_vec1()?, outputs);
            Ok::<_, Error>(Linear { format, ..layer })
        };
        let layers = Self {
            embedding,
            input,
            first: linear("first", embedding, HIDDEN)?,
            actions: dynamics.then_some(actions),
            second: linear("second", HIDDEN, HIDDEN)?,
            heads: linear("heads", HIDDEN, embedding + ACTIONS + 2)?,
        };
        let floats = |(name, width): (&str, usize)| TensorSpec::f32(name, &[width]);
        let mut inputs = vec![floats((input, embedding))];
        if dynamics {
            inputs.push(TensorSpec::u32("action", &[1]).below(&[ACTIONS as u32]));
        }
        let outputs = [("embedding", embedding), ("logits", ACTIONS), ("value", 1), ("reward", 1)].map(floats).into();
        let signature = Signature { inputs, outputs, state: Vec::new() };
        Ok(Arc::new(Network::of(("perceptron", &embedding), signature, &Device::Cpu, layers)?))
    }
}

impl Layers for Perceptron {
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let mut x = e.input(self.input)?;
        x = match &self.actions {
            Some(table) => {
                let x = e.linear(&x, &self.first, Activation::None)?;
                let action = e.indices("action")?;
                e.add_rows(&x, table, &action, &[(0, 0)], Activation::Relu)?
            }
            None => e.linear(&x, &self.first, Activation::Relu)?,
        };
        x = e.linear(&x, &self.second, Activation::Relu)?;
        let all = e.linear(&x, &self.heads, Activation::None)?;
        let mut start = 0;
        let mut part = |width| {
            start += width;
            e.columns(&all, start - width, width).map(Output::Floats)
        };
        [self.embedding, ACTIONS, 1, 1].into_iter().map(&mut part).collect()
    }
}

/// Seconds of the median and of the best run.
fn time(mut run: impl FnMut() -> Result<()>) -> Result<(f64, f64)> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < 21 || begin.elapsed().as_secs_f64() < 1.0 {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[0]))
}

fn tree_alone(batch: usize, settings: &Settings) -> Result<(f64, f64)> {
    let mut search = Search::new(Sizes { batch, simulations: settings.simulations, actions: ACTIONS, embedding: 1 })?;
    let mut numbers = vec![0.0; 1024];
    Random::new(2).fill_normal(0, &mut numbers);
    let mut model = |e: &mut Expansion| {
        for row in 0..e.rows() {
            let (from, to) = e.embeddings(row);
            let at = (from[0] as usize * 5 + row + 1) % 1000;
            to[0] = at as f32;
            let at = at + e.actions()[row] as usize;
            (e.values[row], e.rewards[row]) = (numbers[at], numbers[at + 1]);
            e.logits[row * ACTIONS..][..ACTIONS].copy_from_slice(&numbers[at..at + ACTIONS]);
        }
        e.discounts.fill(0.99);
        Ok(())
    };
    let (zeros, legal) = (vec![0.0; batch * ACTIONS], vec![true; batch * ACTIONS]);
    let roots = Roots { logits: &zeros, values: &zeros[..batch], embeddings: &zeros[..batch], legal: &legal };
    let addresses: Vec<Random> = (0..batch as u64).map(|row| Random::new(3).at(row)).collect();
    time(|| search.run(&roots, settings, Noise::Rows(&addresses), &mut model).map(|_| ()))
}

fn with_network(batch: usize, search: Settings, (threads, embedding, format): (usize, usize, Stored)) -> Result<(f64, f64)> {
    let options = PlannerOptions { batch, search, discount: 0.99, place: Placement::cpu(threads) };
    let mut planner =
        Planner::new(Perceptron::network("board", embedding, format)?, Perceptron::network("embedding", embedding, format)?, &options)?;
    for row in 0..batch {
        Random::new(4).at(row as u64).fill_normal(0, planner.floats_mut("board", row)?);
    }
    let addresses: Vec<Random> = (0..batch as u64).map(|row| Random::new(3).at(row)).collect();
    time(|| planner.plan(Noise::Rows(&addresses)).map(|_| ()))
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: usize| {
        let typed = arguments.get(place).map(|text| text.parse());
        typed.unwrap_or(Ok(default)).map_err(|_| Error::Input("expected [THREADS] [EMBEDDING] [q8]".to_owned()))
    };
    let (threads, embedding) = (number(0, 2)?, number(1, 128)?);
    let (name, format): (_, Stored) = match arguments.get(2) {
        Some(name) if name == "q8" => ("8 bits", Format::q8),
        _ => ("f32", |_, _| Format::F32),
    };
    println!("{ACTIONS} actions, embedding of {embedding}, weights of {name}; millions of simulations a second");
    println!("{:>7} {:>4} {:>3}  {:>22}  tree and network, {threads} threads", "method", "B", "S", "tree alone, one thread");
    for (name, method) in [("gumbel", Method::Gumbel(Gumbel::default())), ("puct", Method::Puct(Puct::default()))] {
        for (batch, simulations) in [(1, 25), (1, 50), (32, 25), (32, 50), (256, 25), (256, 50)] {
            let settings = Settings { method, simulations, max_depth: None };
            let speed = |(median, best): (f64, f64)| {
                let millions = |seconds| (batch * simulations) as f64 / seconds / 1e6;
                format!("{:.2} ({:.2})", millions(median), millions(best))
            };
            let (tree, all) = (tree_alone(batch, &settings)?, with_network(batch, settings, (threads, embedding, format))?);
            println!("{name:>7} {batch:>4} {simulations:>3}  {:>22}  {}", speed(tree), speed(all));
        }
    }
    Ok(())
}

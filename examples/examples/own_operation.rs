//! An operation of one's own, with its kernel and without: Snake, `x + sin(a x)^2 / a` (Ziyin et al. 2020), behind a linear layer.
//! `cargo run -p examples --example own_operation`: name, widths and reference are all that an operation needs; the rest makes it fast.

use candle_core::{Device, Tensor};
use candle_models::Result;
use candle_models::engine::{Engine, Options};
use candle_models::exec::cpu::{self, Packer};
use candle_models::exec::program::{Output, Wires};
use candle_models::exec::tensors::{Indices, TensorPass};
use candle_models::exec::{Derivative, Executor, Operation, RowGradients, TapeBuilder, Values, Widths, operands};
use candle_models::network::{Layers, Network};
use candle_models::nn::{Linear, Params};
use candle_models::ops::Activation;
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::signature::{Signature, TensorSpec};
use candle_models::tensors::NamedTensors;
use std::sync::Arc;

#[derive(Debug, Clone, Copy)]
struct Snake {
    a: f32,
    /// Whether it has a kernel, or runs on tensors in the engine too.
    kernel: bool,
}

impl RowGradients for Snake {
    fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
        y.iter_mut().zip(x[0]).for_each(|(y, x)| *y = x + (self.a * x).sin().powi(2) / self.a);
    }

    fn backward(&self, x: &[&[f32]], _: &[f32], dy: &[f32], dx: &mut [&mut [f32]]) {
        dx[0].iter_mut().zip(x[0]).zip(dy).for_each(|((dx, x), dy)| *dx = dy * (1.0 + (2.0 * self.a * x).sin()));
    }
}

impl Operation for Snake {
    fn name(&self) -> &'static str {
        "snake"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [x] = operands(self.name(), x)?;
        Ok(Widths::floats(x))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [x] = operands(self.name(), x)?;
        let a = f64::from(self.a);
        Ok(Values::floats((x + ((x * a)?.sin()?.sqr()? / a)?)?))
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (snake, microseconds) = (*self, 0.02 * wires.out()[0].width() as f32);
        let row = move |x: &cpu::Row, y: &mut cpu::RowOut| {
            snake.forward(&[x.x(0)], y.floats(0));
            Ok(())
        };
        Ok(self.kernel.then(|| packer.for_rows(microseconds, row)))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        tape.rows(wires, *self)
    }
}

struct Net {
    layer: Linear,
    snake: Snake,
}

impl Layers for Net {
    /// The pass, written once for all executors.
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let x = e.input("x")?;
        let h = e.linear(&x, &self.layer, Activation::None)?;
        Ok(vec![Output::Floats(e.apply(self.snake, &[&h])?)])
    }
}

fn main() -> anyhow::Result<()> {
    let x = [0.5, -1.0, 2.0, 0.25];
    let [inputs, outputs] = [("x", 4), ("y", 8)].map(|(name, width)| vec![TensorSpec::f32(name, &[width])]);
    let signature = Signature { inputs, outputs, state: Vec::new() };
    let layer = Linear::new(4, 8, &Params::init(Random::new(1), &Device::Cpu))?;
    let inputs = NamedTensors::from_iter([("x".to_owned(), Tensor::from_slice(&x, (1, 1, 4), &Device::Cpu)?)]);
    for kernel in [true, false] {
        let net = Net { layer: layer.clone(), snake: Snake { a: 1.5, kernel } };
        let net = Arc::new(Network::of(("own", &kernel), signature.clone(), &Device::Cpu, net)?);
        let want = net.unroll(&inputs, &[false], &NamedTensors::new())?.0.get("y")?.flatten_all()?.to_vec1::<f32>()?;
        let engine = Engine::start(net, &Options::default())?;
        let mut session = engine.open()?;
        session.set_f32("x", &x)?;
        session.step()?;
        let y = session.floats("y")?;
        println!("{y:.3?} in the engine; without a kernel: {:?}", engine.on_tensors());
        anyhow::ensure!(y.iter().zip(&want).all(|(y, want)| (y - want).abs() < 1e-5), "on tensors it is {want:?}");
    }
    Ok(())
}

//! Runs one operation after another on the CPU and on the CUDA device and compares the results.
mod graph;

use candle_core::{D, DType, Device, IndexOp, Result, Tensor};

struct Check {
    cuda: Device,
    failed: usize,
}

impl Check {
    /// `f` builds its inputs on the device that it is given.
    fn run(&mut self, name: &str, tolerance: f64, f: impl Fn(&Device) -> Result<Tensor>) {
        let outcome = f(&Device::Cpu).and_then(|want| Ok((want, f(&self.cuda)?.to_device(&Device::Cpu)?)));
        let difference = outcome.and_then(|(want, got)| {
            if want.dims() != got.dims() || want.dtype() != got.dtype() {
                candle_core::bail!("{:?} {:?} instead of {:?} {:?}", got.dims(), got.dtype(), want.dims(), want.dtype());
            }
            let (want, got) = (want.to_dtype(DType::F64)?, got.to_dtype(DType::F64)?);
            let (want, got) = (want.flatten_all()?.to_vec1::<f64>()?, got.flatten_all()?.to_vec1::<f64>()?);
            Ok(want
                .iter()
                .zip(&got)
                .map(|(w, g)| if w == g { 0. } else { (w - g).abs() / w.abs().max(1.) })
                .fold(0., |m: f64, d| if d > m || d.is_nan() { d } else { m }))
        });
        match difference {
            Ok(d) if d <= tolerance => println!("ok      {name} ({d:.1e})"),
            Ok(d) => {
                println!("WRONG   {name}: differs by {d:.3e}");
                self.failed += 1;
            }
            Err(error) => {
                println!("FAILED  {name}: {error}");
                self.failed += 1;
            }
        }
    }
}

/// Values that repeat nowhere, of both signs.
fn input(device: &Device, dims: &[usize]) -> Result<Tensor> {
    let n = dims.iter().product::<usize>();
    let values: Vec<f32> = (0..n).map(|i| ((i * 7919 + 13) % 1009) as f32 / 251. - 2.).collect();
    Tensor::from_vec(values, dims, device)
}

fn ids(device: &Device, n: usize, below: u32) -> Result<Tensor> {
    Tensor::from_vec((0..n as u32).map(|i| i * 17 % below).collect::<Vec<_>>(), n, device)
}

fn main() -> Result<()> {
    let mut c = Check { cuda: Device::new_cuda_with_stream(0)?, failed: 0 };
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        let (name, t) = (
            format!("{dtype:?}"),
            if dtype == DType::BF16 {
                2e-2
            } else if dtype == DType::F16 {
                3e-3
            } else {
                1e-5
            },
        );
        let x = move |d: &Device, dims: &[usize]| input(d, dims)?.to_dtype(dtype);
        c.run(&format!("copy {name}"), 0., |d| x(d, &[3, 5]));
        c.run(&format!("add {name}"), t, |d| x(d, &[33, 7])? + x(d, &[33, 7])?);
        c.run(&format!("broadcast_add {name}"), t, |d| x(d, &[33, 7])?.broadcast_add(&x(d, &[7])?));
        c.run(&format!("broadcast_div {name}"), t, |d| x(d, &[9, 7])?.broadcast_div(&(x(d, &[9, 1])?.sqr()? + 1.)?));
        c.run(&format!("affine {name}"), t, |d| x(d, &[300])?.affine(1.5, -0.25));
        c.run(&format!("matmul {name}"), t, |d| x(d, &[17, 29])?.matmul(&x(d, &[29, 11])?));
        c.run(&format!("batched matmul {name}"), t, |d| x(d, &[3, 5, 8])?.matmul(&x(d, &[3, 4, 8])?.transpose(1, 2)?));
        c.run(&format!("transposed {name}"), t, |d| x(d, &[6, 10])?.t()?.contiguous());
        for (op, f) in [
            ("exp", Tensor::exp as fn(&Tensor) -> Result<Tensor>),
            ("tanh", Tensor::tanh),
            ("gelu_erf", Tensor::gelu_erf),
            ("gelu", Tensor::gelu),
            ("silu", Tensor::silu),
            ("relu", Tensor::relu),
            ("sin", Tensor::sin),
            ("cos", Tensor::cos),
            ("erf", Tensor::erf),
            ("floor", Tensor::floor),
            ("abs", Tensor::abs),
            ("neg", Tensor::neg),
            ("sqr", Tensor::sqr),
        ] {
            c.run(&format!("{op} {name}"), t, |d| f(&x(d, &[777])?));
        }
        c.run(&format!("log {name}"), t, |d| (x(d, &[777])?.abs()? + 0.1)?.log());
        c.run(&format!("sqrt {name}"), t, |d| x(d, &[777])?.abs()?.sqrt());
        // The CPU adds 16-bit values in 16 bits.
        c.run(&format!("sum {name}"), t * 8., |d| x(d, &[7, 300])?.sum(D::Minus1));
        c.run(&format!("sum 0 {name}"), t * 4., |d| x(d, &[30, 41])?.sum(0));
        c.run(&format!("max {name}"), 0., |d| x(d, &[7, 300])?.max(1));
        c.run(&format!("argmax {name}"), 0., |d| x(d, &[7, 300])?.argmax(1));
        c.run(&format!("softmax {name}"), t, |d| candle_nn::ops::softmax(&x(d, &[9, 65])?, 1));
        c.run(&format!("softmax_last_dim {name}"), t, |d| candle_nn::ops::softmax_last_dim(&x(d, &[9, 65])?));
        if dtype != DType::F64 {
            c.run(&format!("rms_norm {name}"), t, |d| candle_nn::ops::rms_norm(&x(d, &[9, 64])?, &x(d, &[64])?, 1e-5));
            c.run(&format!("layer_norm {name}"), t * 2., |d| {
                candle_nn::ops::layer_norm(&x(d, &[9, 64])?, &x(d, &[64])?, &x(d, &[64])?, 1e-5)
            });
        }
        c.run(&format!("cat {name}"), 0., |d| Tensor::cat(&[x(d, &[3, 5])?, x(d, &[3, 2])?], 1));
        c.run(&format!("narrow {name}"), 0., |d| x(d, &[8, 9])?.narrow(1, 2, 4)?.contiguous());
        c.run(&format!("index_select {name}"), 0., |d| x(d, &[20, 6])?.index_select(&ids(d, 9, 20)?, 0));
        c.run(&format!("gather {name}"), 0., |d| x(d, &[8, 9])?.gather(&ids(d, 16, 9)?.reshape((8, 2))?, 1));
        c.run(&format!("index_add {name}"), t, |d| x(d, &[20, 6])?.index_add(&ids(d, 9, 20)?, &x(d, &[9, 6])?, 0));
        c.run(&format!("where {name}"), 0., |d| x(d, &[50])?.ge(0.)?.where_cond(&x(d, &[50])?, &x(d, &[50])?.zeros_like()?));
        c.run(&format!("compare {name}"), 0., |d| x(d, &[50])?.lt(&x(d, &[50])?.neg()?));
        c.run(&format!("clamp {name}"), 0., |d| x(d, &[50])?.clamp(-1., 1.));
        c.run(&format!("powf {name}"), t * 4., |d| (x(d, &[50])?.abs()? + 0.5)?.powf(1.7));
        for to in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            c.run(&format!("cast {name} to {to:?}"), 0., |d| x(d, &[99])?.to_dtype(to));
        }
    }
    c.run("cast f32 to u32 and back", 0., |d| input(d, &[99])?.abs()?.to_dtype(DType::U32)?.to_dtype(DType::F32));
    c.run("cast f32 to u8", 0., |d| (input(d, &[99])?.abs()? * 30.)?.to_dtype(DType::U8));
    c.run("cast f32 to i64", 0., |d| (input(d, &[99])? * 30.)?.to_dtype(DType::I64));
    c.run("arg_sort", 0., |d| input(d, &[4, 60])?.arg_sort_last_dim(true));
    c.run("conv1d", 1e-5, |d| input(d, &[2, 3, 20])?.conv1d(&input(d, &[4, 3, 5])?, 2, 1, 1, 1));
    c.run("conv2d", 1e-5, |d| input(d, &[1, 3, 9, 9])?.conv2d(&input(d, &[4, 3, 3, 3])?, 1, 1, 1, 1));
    c.run("upsample", 0., |d| input(d, &[1, 2, 4, 4])?.upsample_nearest2d(8, 8));
    c.run("gradient", 1e-4, |d| {
        let x = candle_core::Var::from_tensor(&input(d, &[5, 8])?)?;
        let y = candle_nn::ops::softmax(&x.matmul(&input(d, &[8, 6])?)?.tanh()?, 1)?.sqr()?.sum_all()?;
        Ok(y.backward()?.get(&x).cloned().unwrap_or(x.zeros_like()?))
    });
    match graph::replays_equal_eager() {
        Ok(true) => println!("ok      captured graph"),
        outcome => {
            println!("WRONG   captured graph: {outcome:?}");
            c.failed += 1;
        }
    }
    let random = Tensor::randn(0f32, 1., 4096, &c.cuda)?;
    let (mean, square) = (random.mean_all()?.to_scalar::<f32>()?, random.sqr()?.mean_all()?.to_scalar::<f32>()?);
    println!("randn: mean {mean}, mean square {square}");
    let uniform = Tensor::rand(0f32, 1., 4096, &c.cuda)?.i(..10)?.to_vec1::<f32>()?;
    println!("rand: {uniform:?}");
    if c.failed > 0 || mean.abs() > 0.1 || (square - 1.).abs() > 0.1 {
        println!("{} failed", c.failed);
        std::process::exit(1);
    }
    Ok(())
}

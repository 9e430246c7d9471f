//! A captured graph of Candle operations: replays must equal eager runs on other inputs.
use candle_core::{
    DType, Device, Result, Tensor,
    cuda_backend::{WrapErr, cudarc::driver::sys},
};

/// Captures a small network, replays it on two inputs; true if both are the eager result bit for bit.
pub fn replays_equal_eager() -> Result<bool> {
    let device = Device::new_cuda_with_stream(0)?;
    let cuda = device.as_cuda_device()?;
    // SAFETY: one stream only.
    unsafe { cuda.disable_event_tracking() };
    let _cache = cuda.enable_cuda_graph_htod_cache();
    let weight = super::input(&device, &[16, 24])?;
    let forward = |x: &Tensor| -> Result<Tensor> {
        let y = x.matmul(&weight)?.tanh()?.broadcast_add(&weight.sum(0)?)?;
        candle_nn::ops::softmax(&y.to_dtype(DType::BF16)?.to_dtype(DType::F32)?, 1)
    };
    let inputs = [super::input(&device, &[4, 16])?, super::input(&device, &[4, 16])?.affine(-0.5, 0.1)?];
    let x = inputs[0].copy()?;
    // Loads the kernels and uploads the small parameters, which a capture cannot do.
    forward(&x)?;
    device.synchronize()?;
    let stream = cuda.cuda_stream();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).w()?;
    let y = forward(&x);
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH).w()?;
    let (y, Some(graph)) = (y?, graph) else { candle_core::bail!("nothing was captured") };
    let mut equal = true;
    for input in &inputs {
        x.slice_set(input, 0, 0)?;
        graph.launch().w()?;
        equal &= y.flatten_all()?.to_vec1::<f32>()? == forward(input)?.flatten_all()?.to_vec1::<f32>()?;
    }
    Ok(equal)
}

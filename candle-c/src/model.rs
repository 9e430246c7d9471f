//! Bundles and their signatures.

use crate::call::{c_text, call, candle_status, some, text};
use candle_models::bundle::Bundle;
use candle_models::candle_core::DType;
use candle_models::engine::Model;
use candle_models::exec::SAMPLE;
use candle_models::families;
use candle_models::signature::{TensorSpec, Values};
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

/// In place of an index, where `can_sample` of its tensor says so: the model chooses.
pub const CANDLE_SAMPLE: u32 = 0xffff_ffff;

const _: () = assert!(CANDLE_SAMPLE == SAMPLE, "the header writes the number out");

/// What the values of a tensor are.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum candle_dtype {
    /// `float`: 32 bits, always finite.
    F32 = 0,
    /// `uint32_t`: indices.
    U32 = 1,
}

/// A tensor of a signature: one row of it, for one agent in one frame. A later version may add fields at the end.
#[repr(C)]
pub struct candle_tensor {
    /// The name, as in "features".
    pub name: *const c_char,
    /// What the values mean, in words; may be empty.
    pub meaning: *const c_char,
    /// What the values are.
    pub dtype: candle_dtype,
    /// How many values there are: the product of the dims.
    pub count: usize,
    /// How many dims there are.
    pub rank: usize,
    /// The shape, `[rank]`. Values lie in row-major order.
    pub dims: *const usize,
    /// Of indices: how many values each of them can take, `[count]`; an index lies below that. NULL where anything goes, and for floats.
    pub below: *const u32,
    /// Of an input: 1 if it has no default and must be set before the first step, or else 0.
    pub required: u8,
    /// Of an input: 1 if CANDLE_SAMPLE can stand in it, or else 0.
    pub can_sample: u8,
}

/// What a model eats, gives and carries. A later version may add fields at the end.
#[repr(C)]
pub struct candle_signature {
    /// The inputs of a frame, `[input_count]`.
    pub inputs: *const *const candle_tensor,
    /// How many inputs there are.
    pub input_count: usize,
    /// The outputs of a frame, `[output_count]`.
    pub outputs: *const *const candle_tensor,
    /// How many outputs there are.
    pub output_count: usize,
    /// The state that is carried from frame to frame, `[state_count]`.
    pub states: *const *const candle_tensor,
    /// How many tensors the state has: 0 for a model without memory.
    pub state_count: usize,
}

/// A model with its weights, read from a bundle. Threads can share it.
pub struct candle_model {
    pub(crate) model: Arc<dyn Model>,
    signature: candle_signature,
    /// What the signature points to.
    _tensors: [Tensors; 3],
}

impl candle_model {
    pub(crate) fn new(model: Arc<dyn Model>) -> Self {
        let signature = model.signature();
        let tensors = [&signature.inputs, &signature.outputs, &signature.state].map(|specs| Tensors::new(specs));
        let [inputs, outputs, states] = tensors.each_ref().map(|tensors| (tensors.list.as_ptr(), tensors.list.len()));
        let signature = candle_signature {
            inputs: inputs.0,
            input_count: inputs.1,
            outputs: outputs.0,
            output_count: outputs.1,
            states: states.0,
            state_count: states.1,
        };
        Self { model, signature, _tensors: tensors }
    }
}

/// Tensors as C reads them, and what they point to.
struct Tensors {
    list: Vec<*const candle_tensor>,
    _tensors: Vec<candle_tensor>,
    _specs: Vec<TensorSpec>,
    _texts: Vec<[CString; 2]>,
}

impl Tensors {
    fn new(specs: &[TensorSpec]) -> Self {
        let specs = specs.to_vec();
        let texts: Vec<_> = specs.iter().map(|spec| [c_text(&spec.name), c_text(spec.meaning)]).collect();
        let tensors: Vec<_> = specs.iter().zip(&texts).map(|(spec, [name, meaning])| tensor(spec, name, meaning)).collect();
        let list = tensors.iter().map(ptr::from_ref).collect();
        Self { list, _tensors: tensors, _specs: specs, _texts: texts }
    }
}

fn tensor(spec: &TensorSpec, name: &CString, meaning: &CString) -> candle_tensor {
    let below = match spec.values() {
        Values::Indices { below, .. } if !below.is_empty() => below.as_ptr(),
        _ => ptr::null(),
    };
    candle_tensor {
        name: name.as_ptr(),
        meaning: meaning.as_ptr(),
        dtype: if spec.dtype() == DType::U32 { candle_dtype::U32 } else { candle_dtype::F32 },
        count: spec.width(),
        rank: spec.shape.len(),
        dims: spec.shape.as_ptr(),
        below,
        required: spec.is_required().into(),
        can_sample: spec.can_sample().into(),
    }
}

/// Reads the bundle in the directory `path`: of its networks the one that is stepped frame by frame.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_model_load(path: *const c_char, model: Option<&mut MaybeUninit<Box<candle_model>>>) -> candle_status {
    call(|| {
        let model_out = some(model, "model")?;
        // SAFETY: the caller's promise, as the header has it.
        let path = unsafe { text(path, "path")? };
        let model = families::shipped().load(&Bundle::open(path)?)?;
        model_out.write(Box::new(candle_model::new(model)));
        Ok(())
    })
}

/// What the model eats, gives and carries: valid until the model is freed.
#[unsafe(no_mangle)]
pub extern "C" fn candle_model_signature(
    model: Option<&candle_model>,
    signature: Option<&mut MaybeUninit<*const candle_signature>>,
) -> candle_status {
    call(|| {
        some(signature, "signature")?.write(&some(model, "model")?.signature);
        Ok(())
    })
}

/// Frees a model; NULL is nothing. Its engines and runners keep its weights.
#[unsafe(no_mangle)]
pub extern "C" fn candle_model_free(model: Option<Box<candle_model>>) {
    call(|| {
        drop(model);
        Ok(())
    });
}

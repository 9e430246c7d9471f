//! What no program in C can bring about: panics, and two threads at once in one handle.

use crate::*;
use candle_models::candle_core::{Device, Tensor};
use candle_models::engine::Model;
use candle_models::recurrent::Recurrent;
use candle_models::signature::{Signature, TensorSpec};
use candle_models::tensors::NamedTensors;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::{ptr, thread};

const PANIC: f32 = 13.0;
const WAIT: f32 = 1.0;

/// Gives back its input, except where that makes it panic or wait until the test lets it go on.
struct Moody {
    signature: Signature,
    device: Device,
    begun: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Recurrent for Moody {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn unroll(&self, inputs: &NamedTensors, _: &[bool], state: &NamedTensors) -> candle_models::Result<(NamedTensors, NamedTensors)> {
        let x: &Tensor = inputs.get("x")?;
        match x.flatten_all()?.to_vec1::<f32>()?[0] {
            PANIC => panic!("unlucky"),
            WAIT => {
                self.begun.send(()).unwrap();
                self.go_on.lock().unwrap().recv().unwrap();
            }
            _ => {}
        }
        Ok(([("y".to_owned(), x.clone())].into_iter().collect(), state.clone()))
    }
}

impl Model for Moody {
    fn family(&self) -> &'static str {
        "moody"
    }

    fn config(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// A model, word of every step that waits, and the way to let it go on.
fn moody() -> (candle_model, Receiver<()>, Sender<()>) {
    let ((begun, word), (go, go_on)) = (channel(), channel());
    let (inputs, outputs) = (vec![TensorSpec::f32("x", &[1])], vec![TensorSpec::f32("y", &[1])]);
    let signature = Signature { inputs, outputs, state: Vec::new() };
    (candle_model::new(Arc::new(Moody { signature, device: Device::Cpu, begun, go_on: Mutex::new(go_on) })), word, go)
}

/// What a function gives through its last argument.
fn given<T>(function: impl FnOnce(Option<&mut MaybeUninit<T>>) -> candle_status) -> T {
    let mut value = MaybeUninit::uninit();
    assert_eq!(function(Some(&mut value)), candle_status::Ok, "{}", message());
    // SAFETY: a call that went well has written it.
    unsafe { value.assume_init() }
}

fn message() -> String {
    // SAFETY: the text is valid until the next failure on this thread.
    unsafe { CStr::from_ptr(candle_last_error()) }.to_str().unwrap().to_owned()
}

fn runner_of(model: &candle_model) -> *mut candle_runner {
    // SAFETY: null stands for the default options.
    Box::into_raw(given(|runner| unsafe { candle_runner_open(Some(model), 1, ptr::null(), runner) }))
}

fn set(runner: *mut candle_runner, x: f32) {
    let (name, mut count) = (CString::new("x").unwrap(), MaybeUninit::uninit());
    // SAFETY: the runner has not been freed, and its input has one value.
    unsafe { *given(|values| candle_runner_input_f32(runner, name.as_ptr(), 0, values, Some(&mut count))) = x };
}

#[test]
fn a_panic_is_an_error_and_poisons_the_runner() {
    let (model, ..) = moody();
    let runner = runner_of(&model);
    set(runner, 2.0);
    let name = CString::new("x").unwrap();
    // SAFETY: the runner is freed at the end, and null stands for no resets and for what is not asked for.
    unsafe {
        assert_eq!(candle_runner_step(runner, ptr::null(), 0), candle_status::Ok);
        set(runner, PANIC);
        assert_eq!(candle_runner_step(runner, ptr::null(), 0), candle_status::Panicked);
        assert_eq!(message(), "the library panicked: unlucky");
        assert_eq!(candle_runner_step(runner, ptr::null(), 0), candle_status::Poisoned);
        assert_eq!(message(), "an earlier call with the runner panicked: it can only be freed");
        assert_eq!(candle_runner_input_f32(runner, name.as_ptr(), 0, None, None), candle_status::Poisoned);
        candle_runner_free(Some(Box::from_raw(runner)));
    }
}

#[test]
fn a_model_that_panics_costs_a_session_its_state_only() {
    let (model, ..) = moody();
    // SAFETY: null stands for the default options.
    let engine = given(|engine| unsafe { candle_engine_start(Some(&model), ptr::null(), engine) });
    let session = Box::into_raw(given(|session| candle_session_open(Some(&engine), session)));
    let name = CString::new("x").unwrap();
    let mut count = MaybeUninit::uninit();
    // SAFETY: the session is freed at the end, and its input has one value.
    unsafe {
        let x = given(|values| candle_session_input_f32(session, name.as_ptr(), values, Some(&mut count)));
        *x = PANIC;
        assert_eq!(candle_session_step(session), candle_status::ModelFailed);
        assert_eq!(message(), "the model panicked: unlucky");
        *x = 2.0;
        assert_eq!(candle_session_step(session), candle_status::StateLost);
        assert_eq!(candle_session_save(session, ptr::null_mut(), 0, Some(&mut count)), candle_status::StateLost);
        assert_eq!(candle_session_reset(session), candle_status::Ok);
        assert_eq!(candle_session_step(session), candle_status::Ok);
        candle_session_free(Some(Box::from_raw(session)));
    }
}

#[test]
fn a_second_thread_in_a_call_is_refused() {
    let (model, begun, go_on) = moody();
    let runner = runner_of(&model);
    set(runner, WAIT);
    // SAFETY: the runner has not been freed; two threads at once are what is tested.
    let step = |runner: *mut candle_runner| unsafe { candle_runner_step(runner, ptr::null(), 0) };
    let address = runner as usize;
    thread::scope(|scope| {
        let first = scope.spawn(move || step(address as *mut candle_runner));
        begun.recv().unwrap();
        assert_eq!(step(runner), candle_status::InUse);
        assert_eq!(message(), "another thread is in a call with the runner");
        go_on.send(()).unwrap();
        assert_eq!(first.join().unwrap(), candle_status::Ok);
    });
    set(runner, 2.0);
    assert_eq!(step(runner), candle_status::Ok);
    // SAFETY: nobody uses the runner any more.
    candle_runner_free(Some(unsafe { Box::from_raw(runner) }));
}

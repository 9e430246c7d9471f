//! The same network behind a web framework of Python, as people serve a model that they have exported.

use super::client::{Client, Drawn, draw, post};
use crate::network::Network;
use crate::peers::exported;
use crate::suite::Python;
use anyhow::{Context, Result};
use candle_models::signature::Signature;
use candle_serve::Address;
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The running app. It is ended when this value is dropped.
pub struct App {
    child: Child,
    address: Address,
}

impl App {
    /// Starts it on the network's step as it is exported.
    ///
    /// # Errors
    /// If the network cannot be exported, or the app does not start: the reason stands on the standard error.
    pub fn start(python: &Python, network: &Network, threads: usize, scratch: &Path) -> Result<Self> {
        let file = exported(network, scratch.join("step.onnx"))?;
        let mut command = Command::new(&python.python);
        command.arg(python.script.with_file_name("fastapi_app.py")).arg(file).arg(threads.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("{} cannot be started", python.python.display()))?;
        let mut line = String::new();
        let read = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
        // From here on whatever fails ends the child.
        let mut app = Self { child, address: Address::Tcp(([127, 0, 0, 1], 0).into()) };
        read.context("the app has no output")??;
        let port: u16 = line.trim().parse().with_context(|| format!("the app ended without a port: {line:?}"))?;
        app.address = Address::Tcp(([127, 0, 0, 1], port).into());
        Ok(app)
    }

    /// A client that asks for a step of one row with random inputs.
    ///
    /// # Errors
    /// If the app does not answer.
    pub fn client(&self, signature: &Signature) -> Result<Client> {
        let named = draw(signature, 1)?.into_iter().map(|input| (input.name.clone(), nested(&input)));
        let body = json!({ "inputs": named.collect::<Map<_, _>>() }).to_string();
        Client::connect(&self.address, post("/infer", "Content-Type: application/json\r\n", body.as_bytes()))
    }
}

impl Drop for App {
    fn drop(&mut self) {
        // It has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The values of a tensor as lists in lists.
fn nested(Drawn { datatype, shape, bytes, .. }: &Drawn) -> Value {
    let word = |word: &[u8]| word.try_into().map(u32::from_le_bytes).unwrap_or_default();
    let value = |word: u32| if *datatype == "UINT32" { json!(word) } else { json!(f32::from_bits(word)) };
    let mut values: Vec<Value> = bytes.chunks_exact(4).map(word).map(value).collect();
    for size in shape.iter().skip(1).rev() {
        values = values.chunks((*size).max(1)).map(|row| json!(row)).collect();
    }
    json!(values)
}

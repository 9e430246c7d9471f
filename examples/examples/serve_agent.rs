//! An agent at 60 Hz whose policy is served elsewhere: a sequence over gRPC, with a deadline for every frame.
//!
//! `cargo run --release --example serve_agent -- [--address http://HOST:PORT] [--frames N]`
//!
//! Without an address it serves a shipped bundle itself. The game is simulated and does not obey the agent.

use anyhow::{Context, Result, bail, ensure};
use candle_models::bundle::Bundle;
use candle_models::families;
use candle_models::policy::PolicyConfig;
use candle_models::policy::actions::Action;
use candle_models::policy::embedding::{Embedding, IDS, Observation, WIDTH};
use candle_models::policy::simulation::simulate;
use candle_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use candle_serve::proto::infer_parameter::ParameterChoice;
use candle_serve::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use candle_serve::proto::{InferParameter, ModelInferRequest, ModelInferResponse};
use candle_serve::{Options, Server};
use std::time::{Duration, Instant};
use tonic::transport::Endpoint;
use tonic::{Code, Request};

const FRAME: Duration = Duration::from_nanos(1_000_000_000 / 60);
/// Before anything was answered nobody plays yet: the first frame may wait for connections and models.
const FIRST: Duration = Duration::from_secs(60);
const MODEL: &str = "policy-mamba";
const BUNDLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../weights/policy-mamba");

fn main() -> Result<()> {
    let (mut address, mut frames) = (None, 300);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--address" => address = Some(value),
            "--frames" => frames = value.parse().with_context(|| format!("--frames {value}"))?,
            _ => bail!("{argument}: expected --address http://HOST:PORT or --frames N"),
        }
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        if let Some(address) = address {
            return play(address, frames).await;
        }
        let free = vec!["127.0.0.1:0".parse().map_err(anyhow::Error::msg)?];
        let server = Server::start(Options { http: free.clone(), grpc: free, ..Options::new(BUNDLE) }, families::shipped()).await?;
        ensure!(server.load().await? == 1, "{:?}", server.failures());
        let played = play(format!("http://{}", server.grpc_addresses()[0]), frames).await;
        server.stop().await;
        played
    })
}

async fn play(address: String, frames: usize) -> Result<()> {
    let embedding = Embedding::new(&Bundle::open(BUNDLE)?.config::<PolicyConfig>()?.names)?;
    println!("{MODEL} at {address} on a simulated game, {frames} frames at 60 Hz");
    let mut client = GrpcInferenceServiceClient::new(Endpoint::from_shared(address)?.connect().await?);
    // Before frame 0 nobody can act.
    let game = simulate(1, frames + 124);
    let (mut features, mut ids) = ([0.0; WIDTH], [0; IDS]);
    let (mut previous, mut start, mut answered, mut anew) = (Action::default(), true, 0, 0);
    let mut deadline = Instant::now();
    for t in 124..game.frames.len() {
        deadline = if answered == 0 { Instant::now() } else { deadline } + FRAME;
        let mut seen = Observation::of(&game, t, 0)?;
        seen.players[0].controller = previous.to_controller();
        embedding.observe(&seen, None, &mut features, &mut ids)?;
        let inputs = [tensor("features", "FP32", &features.map(f32::to_le_bytes)), tensor("ids", "UINT32", &ids.map(u32::to_le_bytes))];
        let pressed = tensor("previous_action", "UINT32", &previous.to_ids().map(u32::to_le_bytes));
        let mut request = Request::new(message(inputs.into_iter().chain([pressed]), start, t + 1 == game.frames.len()));
        request.set_timeout(if answered == 0 { FIRST } else { FRAME });
        match client.model_infer(request).await {
            Ok(answer) => {
                (previous, start) = (action(answer.get_ref())?, false);
                answered += 1;
            }
            Err(status) => match status.code() {
                // The frame is over, too many asked at once, or the server is restarted: the last action stays, and the next frame asks again.
                Code::DeadlineExceeded | Code::Cancelled | Code::ResourceExhausted | Code::Unavailable => {}
                // The state was lost in a step that failed, or the sequence has ended: it begins anew.
                Code::FailedPrecondition | Code::InvalidArgument if !start => (start, anew) = (true, anew + 1),
                _ => return Err(status.into()),
            },
        }
        tokio::time::sleep_until(deadline.into()).await;
    }
    println!("{answered} of {frames} frames answered, {anew} times begun anew, last action {previous}");
    ensure!(answered > 0, "no frame was answered");
    Ok(())
}

/// A tensor of one row with its values.
fn tensor(name: &str, datatype: &str, values: &[[u8; 4]]) -> (InferInputTensor, Vec<u8>) {
    let shape = vec![1, values.len() as i64];
    (InferInputTensor { name: name.to_owned(), datatype: datatype.to_owned(), shape, ..Default::default() }, values.concat())
}

/// A step of this agent's sequence.
fn message(inputs: impl Iterator<Item = (InferInputTensor, Vec<u8>)>, start: bool, end: bool) -> ModelInferRequest {
    let (inputs, values): (_, Vec<_>) = inputs.unzip();
    let id = ParameterChoice::StringParam(format!("serve_agent-{}", std::process::id()));
    let marks =
        [("sequence_id", id), ("sequence_start", ParameterChoice::BoolParam(start)), ("sequence_end", ParameterChoice::BoolParam(end))];
    let parameter = |(name, choice): (&str, _)| (name.to_owned(), InferParameter { parameter_choice: Some(choice) });
    ModelInferRequest {
        model_name: MODEL.to_owned(),
        parameters: marks.into_iter().map(parameter).collect(),
        inputs,
        outputs: vec![InferRequestedOutputTensor { name: "action".to_owned(), ..Default::default() }],
        raw_input_contents: values.into_iter().map(Into::into).collect(),
        ..Default::default()
    }
}

/// The action of an answer.
fn action(answer: &ModelInferResponse) -> Result<Action> {
    let bytes = answer.raw_output_contents.first().context("an answer without an action")?;
    let ids: Vec<u32> = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    Ok(Action::from_ids(&ids)?)
}

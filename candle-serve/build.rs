//! Generates the messages and services of gRPC from their declarations: without protoc.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["inference.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // Reflection describes the service by it.
    std::fs::write(out.join("inference.bin"), prost::Message::encode_to_vec(&files))?;
    // Contents of tensors stay where they lie in the message, and answers have an order.
    tonic_prost_build::configure().bytes(".").btree_map(".").build_transport(false).codec_path("crate::grpc::Codec").compile_fds(files)?;
    Ok(())
}

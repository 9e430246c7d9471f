//! Messages as bytes: as tonic has them, but a message that is none is the client's fault and not the server's.

use prost::Message;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// Reads messages `D` and writes messages `E`.
pub(crate) struct Codec<E, D>(PhantomData<(E, D)>);

impl<E, D> Default for Codec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E: Message + Send + 'static, D: Message + Default + Send + 'static> tonic::codec::Codec for Codec<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = ProstEncoder<E>;
    type Decoder = Read<D>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Read(PhantomData)
    }
}

/// Reads messages.
pub(crate) struct Read<D>(PhantomData<D>);

impl<D: Message + Default> Decoder for Read<D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        D::decode(bytes).map(Some).map_err(|error| Status::invalid_argument(format!("request: {error}")))
    }
}

//! What it costs that a server knows its clients, keeps their sequences and speaks TLS.

use super::client::{Begin, Client, request};
use super::{MODEL, ServeSuite};
use crate::target::TargetRow;
use anyhow::{Result, ensure};
use candle_models::engine::Model;
use candle_serve::{Address, Options, Role, TlsFiles, create_key};
use rcgen::CertifiedKey;
use std::path::Path;
use std::time::Duration;

/// Between two snapshots of a sequence that is stepped all the time.
const EVERY: Duration = Duration::from_secs(1);

impl ServeSuite<'_> {
    /// Steps of a sequence beside those of a server that asks for no keys and writes no snapshots, at `tcp` and `unix`.
    pub(super) fn guarded(&self, model: &dyn Model, [tcp, unix]: [&Address; 2], scratch: &Path) -> Result<Vec<TargetRow>> {
        let folder = scratch.join("guarded");
        std::fs::create_dir(&folder)?;
        let write = |name: &str, text: String| std::fs::write(folder.join(name), text).map(|()| folder.join(name));
        let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let (key, line) = create_key("bench", Role::Infer).map_err(anyhow::Error::msg)?;
        let options = Options {
            keys: Some(write("keys.jsonl", line)?),
            tls: Some(TlsFiles {
                certificate: write("server.pem", cert.pem())?,
                key: write("server.key", signing_key.serialize_pem())?,
                client_ca: None,
            }),
            snapshots: Some(folder.join("snapshots").into()),
            snapshot_every: EVERY,
            ..self.plain(&folder)
        };
        let server = self.serve(options)?;
        let addresses = server.server.addresses();
        ensure!(addresses.len() == 2, "expected two addresses");
        let authorization = format!("Authorization: Bearer {key}\r\n");
        let of = |begin, headers: &str| request(model.signature(), MODEL, 1, Some(begin), headers);
        let certificate = cert.der();
        let open = |connect: &dyn Fn(Vec<u8>) -> Result<Client>, headers: &str| {
            connect(of(Begin::Start, headers)?)?.ask()?;
            connect(of(Begin::GoOn, headers)?)
        };
        let plain = |address| open(&|request| Client::connect(address, request), "");
        let sockets = self.compare(&|| Ok(Box::new(open(&|request| Client::connect(&addresses[1], request), &authorization)?)), &|| {
            Ok(Box::new(plain(unix)?))
        })?;
        let secure = self
            .compare(&|| Ok(Box::new(open(&|request| Client::secure(&addresses[0], certificate, request), &authorization)?)), &|| {
                Ok(Box::new(plain(tcp)?))
            })?;
        Ok(vec![
            self.over("step of a sequence with keys and snapshots over without, median", &sockets, 1.2, "without"),
            self.over("the same over TLS, median", &secure, 1.5, "without"),
        ])
    }
}

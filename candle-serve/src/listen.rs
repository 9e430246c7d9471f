//! Listeners, and the way of a connection to the protocol that it speaks.

use crate::grpc::{self, Services};
use crate::http;
use crate::options::Address;
use crate::server::Shared;
use crate::tls::Tls;
use crate::workers::Workers;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// How far a server is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Phase {
    /// It takes requests, and says that it is ready once its models are loaded.
    Open,
    /// It takes requests, and says that it is not ready.
    Leaving,
    /// It takes no connections any more, and closes those that it has once they are answered.
    Closing,
}

/// Waits until the server is closing.
pub(crate) async fn closing(phase: &mut watch::Receiver<Phase>) {
    // The server is gone as well if nobody can say so any more.
    let _ = phase.wait_for(|phase| *phase == Phase::Closing).await;
}

/// What is spoken over the connections of a listener.
#[derive(Clone)]
pub(crate) enum Protocol {
    Http(Arc<Shared>),
    Grpc(Services),
}

impl Protocol {
    /// An address that it is spoken at, for people.
    pub fn place(&self, address: &Address, tls: Option<&Tls>) -> String {
        match (self, address, tls) {
            (Self::Http(_), Address::Tcp(address), None) => format!("http://{address}"),
            (Self::Http(_), Address::Tcp(address), Some(_)) => format!("https://{address}"),
            (Self::Http(_), Address::Unix(_), _) => address.to_string(),
            (Self::Grpc(_), ..) => format!("{address} (gRPC)"),
        }
    }
}

/// A socket that connections come from.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: Socket },
}

/// The file of a Unix socket, removed in the end.
pub(crate) struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        // Somebody else has removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Listens; also where, as a port of 0 is one that was free.
    pub async fn bind(address: &Address) -> io::Result<(Self, Address)> {
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address).await?;
                let address = listener.local_addr()?;
                Ok((Self::Tcp(listener), Address::Tcp(address)))
            }
            Address::Unix(path) => {
                let bound = match UnixListener::bind(path) {
                    // What a server that was killed has left behind: nobody listens there.
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_behind(path).await => {
                        std::fs::remove_file(path)?;
                        UnixListener::bind(path)
                    }
                    bound => bound,
                };
                Ok((Self::Unix { listener: bound?, _file: Socket(path.clone()) }, Address::Unix(path.clone())))
            }
        }
    }
}

async fn is_left_behind(path: &PathBuf) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    is_socket && UnixStream::connect(path).await.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Takes connections until the server is closing, each as soon as there is room for it.
pub(crate) async fn accept(
    listener: Listener,
    (protocol, tls): (Protocol, Option<Tls>),
    (room, workers): (Arc<Semaphore>, Arc<Workers>),
    mut phase: watch::Receiver<Phase>,
) {
    let connections = phase.clone();
    let mut closing = pin!(closing(&mut phase));
    loop {
        let next = async {
            let stream = accept_one(&listener).await;
            // Not before there is a connection: a listener that nobody comes to would keep the place from the others.
            (stream, room.clone().acquire_owned().await)
        };
        let (stream, permit) = tokio::select! {
            () = &mut closing => return,
            next = next => next,
        };
        match (stream, permit) {
            (Ok(stream), Ok(permit)) => {
                workers.serve(begin(stream, (protocol.clone(), tls.clone()), permit, connections.clone()));
            }
            // Too many open files, mostly: others close some.
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// A connection on its way to the thread that serves it.
enum Stream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

async fn accept_one(listener: &Listener) -> io::Result<Stream> {
    Ok(match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // Without it an answer waits for the client's acknowledgement of the last one.
            let _ = stream.set_nodelay(true);
            Stream::Tcp(stream.into_std()?)
        }
        Listener::Unix { listener, .. } => Stream::Unix(listener.accept().await?.0.into_std()?),
    })
}

/// Serves a connection on the thread that it stays on. Of one that the thread cannot take the client hears that it is closed.
async fn begin(stream: Stream, (protocol, tls): (Protocol, Option<Tls>), room: OwnedSemaphorePermit, phase: watch::Receiver<Phase>) {
    match (stream, tls) {
        (Stream::Unix(stream), _) => {
            let Ok(stream) = UnixStream::from_std(stream) else { return };
            serve(stream, protocol, room, phase).await;
        }
        (Stream::Tcp(stream), None) => {
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            serve(stream, protocol, room, phase).await;
        }
        (Stream::Tcp(stream), Some(tls)) => {
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            let Some(stream) = tls.accept(stream).await else { return };
            serve(stream, protocol, room, phase).await;
        }
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    protocol: Protocol,
    room: OwnedSemaphorePermit,
    phase: watch::Receiver<Phase>,
) {
    match protocol {
        Protocol::Http(shared) => http::connection(stream, shared, room, phase).await,
        Protocol::Grpc(services) => grpc::connection(stream, services, room, phase).await,
    }
}

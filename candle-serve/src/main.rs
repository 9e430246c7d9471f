//! `candle-serve` with the shipped families.

use candle_models::families;
use candle_serve::{Arguments, KeyArguments, Server, create_key, to_stderr};
use clap::Parser;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "key") {
        return key(KeyArguments::parse_from(std::env::args_os().skip(1)));
    }
    let arguments = Arguments::parse();
    if let Err(error) = to_stderr(arguments.log_format) {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    let served = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Into::into).and_then(|runtime| {
        let served = runtime.block_on(serve(arguments));
        // A client that has not taken its answer by now does not keep the process.
        runtime.shutdown_background();
        served
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Says a new key, and the line that makes servers know it.
fn key(KeyArguments { name, role }: KeyArguments) -> ExitCode {
    match create_key(&name, role) {
        Ok((key, line)) => {
            println!("{line}");
            eprintln!("{key}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    // Before anything else: a signal that comes while models are loaded is one all the same.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hangup = signal(SignalKind::hangup())?;
    let grace = Duration::from_secs(arguments.grace);
    let server = Server::start(arguments.options(), families::shipped()).await?;
    let mut asked = async || loop {
        tokio::select! {
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
            _ = hangup.recv() => server.renew(),
        }
    };
    let loaded = tokio::select! {
        () = asked() => false,
        loaded = load(&server) => loaded.map(|()| true)?,
    };
    if loaded {
        asked().await;
    }
    server.leave().await;
    // Whoever asks twice is in a hurry.
    let _ = tokio::time::timeout(grace, asked()).await;
    server.stop().await;
    Ok(())
}

/// Loads every bundle, and says what is served where. Why others are not stands in the log.
async fn load(server: &Server) -> Result<(), Box<dyn std::error::Error>> {
    let loaded = server.load().await?;
    if loaded == 0 {
        return Err("no bundle could be loaded".into());
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{loaded} models are served at {}", server.places().join(", "))?;
    out.flush()?;
    Ok(())
}

//! `candle-serve` with the shipped families.

use candle_models::families;
use candle_serve::{Arguments, KeyArguments, Server, TopArguments, create_key, to_stderr, top};
use clap::Parser;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let own = || std::env::args_os().skip(1);
    match own().next() {
        Some(name) if name == "key" => return key(KeyArguments::parse_from(own())),
        Some(name) if name == "top" => return look(TopArguments::parse_from(own())),
        _ => {}
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

/// Shows what a server is at.
fn look(arguments: TopArguments) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string());
    match runtime.and_then(|runtime| runtime.block_on(top(arguments))) {
        Ok(()) => ExitCode::SUCCESS,
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

//! Programs that end with the test, however that ends.

use std::process::{Child, Command, ExitStatus};

/// A program that is running, or has ended.
pub struct Program(pub Child);

impl Program {
    /// Starts it.
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Sends it a signal, as in `TERM`.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([format!("-{signal}"), self.0.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{signal} could not be sent");
    }

    /// Sends it a signal and waits until it has ended.
    pub fn end(&mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        self.0.wait().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

//! Sessions and runners that work for one call at a time, while others hold on to their memory.

use crate::errors::{exception, raised};
use candle_models::Error;
use pyo3::{PyResult, Python};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a value lies unless a call has it. Whoever shares a `Home` keeps the value alive, and with it the memory that its arrays lie in.
pub struct Home<T> {
    value: Mutex<Option<T>>,
    what: &'static str,
}

impl<T: Send> Home<T> {
    /// The home of a session or runner: `what` names it in errors.
    pub fn new(what: &'static str, value: T) -> Arc<Self> {
        Arc::new(Self { value: Mutex::new(Some(value)), what })
    }

    /// The value, which goes home when the loan is dropped.
    ///
    /// # Errors
    /// If another call has it.
    pub fn lend(self: &Arc<Self>) -> PyResult<Loan<T>> {
        match lock(&self.value).take() {
            Some(value) => Ok(Loan { value: Some(value), home: self.clone() }),
            None => Err(exception("BusyError", format!("the {} is at work in another call", self.what))),
        }
    }

    /// Works on the value while the interpreter goes on.
    pub fn call<R: Send, E: Into<Error> + Send>(
        self: &Arc<Self>,
        py: Python<'_>,
        work: impl FnOnce(&mut T) -> Result<R, E> + Send,
    ) -> PyResult<R> {
        let mut loan = self.lend()?;
        py.detach(move || work(loan.get())).map_err(raised)
    }
}

/// A value that one call has.
pub struct Loan<T> {
    /// There until the loan is dropped.
    value: Option<T>,
    home: Arc<Home<T>>,
}

impl<T> Loan<T> {
    /// The value.
    pub fn get(&mut self) -> &mut T {
        let Some(value) = &mut self.value else { unreachable!("a loan has its value until it is dropped") };
        value
    }
}

impl<T> Drop for Loan<T> {
    fn drop(&mut self) {
        *lock(&self.home.value) = self.value.take();
    }
}

/// What a mutex guards, whoever panicked with it: nothing here is left half done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

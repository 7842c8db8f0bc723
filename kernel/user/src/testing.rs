//! Common parts of test programs: a list of tests, a line of output for each test, and a status
//! that counts the failures.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;

use crate::lock::SpinLock;
use crate::{Error, println, sys};

/// Maximum number of descriptors of a process.
const MAX_FILES: usize = 8192;

/// Result of a test.
pub type Outcome = Result<(), String>;

/// A test of coroutines.
pub type Test = fn() -> Pin<Box<dyn Future<Output = Outcome>>>;

/// Returns from the test with a reason unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($arg:tt)+) => {
        if !$condition {
            return Err(alloc::format!($($arg)+));
        }
    };
}

/// Declares the tests of a program: the constant `TESTS`, for [`run_all`].
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        const TESTS: &[(&str, $crate::testing::Test)] =
            &[$((stringify!($name), || alloc::boxed::Box::pin($name()))),*];
    };
}

/// Resources that the running test has opened, for [`report`].
struct TestResources {
    /// First descriptor that the test can have opened.
    first_file: usize,
    children: Vec<usize>,
}

static RESOURCES: SpinLock<Option<TestResources>> = SpinLock::new(None);

/// Begins the tests. The descriptors that are open now stay open.
pub fn begin() {
    let Ok(pipe) = crate::pipe() else { return };
    for file in [pipe.reader, pipe.writer] {
        let _ = sys::close(file);
    }
    *RESOURCES.lock() = Some(TestResources {
        first_file: pipe.reader.min(pipe.writer),
        children: Vec::with_capacity(MAX_CHILDREN),
    });
}

/// Maximum number of children of a failed test that are killed.
const MAX_CHILDREN: usize = 256;

pub(crate) fn record_child(child: usize) {
    if let Some(resources) = &mut *RESOURCES.lock()
        && resources.children.len() < MAX_CHILDREN
    {
        resources.children.push(child);
    }
}

/// Forgets the children that a test has started, because after a fork they belong to the parent.
pub(crate) fn forget_children() {
    if let Some(resources) = &mut *RESOURCES.lock() {
        resources.children.clear();
    }
}

/// Kills the children of a failed test, and closes its descriptors, so that the next test starts
/// without them.
fn clean() {
    let Some(mut resources) = RESOURCES.lock().take() else {
        return;
    };
    for child in resources.children.drain(..) {
        // Most of the children have been waited for.
        if sys::kill(child).is_ok() {
            let _ = crate::wait(child);
        }
    }
    for file in resources.first_file..MAX_FILES {
        let _ = sys::close(file);
    }
    *RESOURCES.lock() = Some(resources);
}

/// Prints the result of a test, and cleans up after a failure. Returns true if it passed.
#[must_use]
pub fn report(name: &str, outcome: Outcome) -> bool {
    match outcome {
        Ok(()) => {
            forget_children();
            println!("test {name} ... ok");
            true
        }
        Err(reason) => {
            clean();
            println!("test {name} ... FAILED: {reason}");
            false
        }
    }
}

/// Runs the tests one after the other; returns the number of failures, which is the status of the
/// program.
pub async fn run_all(tests: &[(&str, Test)]) -> isize {
    begin();
    let mut failed = 0;
    for (name, test) in tests {
        failed += isize::from(!report(name, test().await));
    }
    failed
}

/// Formats an error as the reason of a failure.
#[must_use]
pub fn message(error: Error) -> String {
    format!("{error}")
}

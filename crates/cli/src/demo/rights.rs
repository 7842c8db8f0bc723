//! Whether the servers of this demo may preempt.

/// What is missing; none if nothing is.
pub(crate) fn lack() -> Option<String> {
    Some("the runtime of this version cannot suspend polls".to_owned())
}

//! Tests of the attributes `#[upshift::test]` and `#[upshift::main]` with arguments.

use std::time::Duration;

use upshift::{Handle, Level, current_level};

#[upshift::test(vcpus = 2, preemption, level = 4, driver = "readiness", tokio = false)]
async fn arguments_configure_the_runtime() {
    let handle = Handle::current().unwrap();
    assert_eq!(handle.vcpus(), 2);
    assert_eq!(current_level(), Some(Level::at::<4>()));
    assert!(tokio::runtime::Handle::try_current().is_err());
    assert_eq!(handle.metrics().driver, "readiness");
}

#[upshift::test]
async fn a_test_has_one_vcpu_and_tokios_context() -> std::io::Result<()> {
    assert_eq!(Handle::current()?.vcpus(), 1);
    tokio::time::sleep(Duration::from_millis(1)).await;
    let result = tokio::spawn(async { 7 }).await;
    assert_eq!(result.unwrap(), 7);
    Ok(())
}

#[upshift::main(vcpus = 1, level = 40 - 1, driver = "auto", preemption = "off", tokio = true)]
async fn main_with_computed_level() -> std::io::Result<Option<Level>> {
    Ok(current_level())
}

#[test]
fn the_level_may_be_a_constant_expression() {
    assert_eq!(main_with_computed_level().unwrap(), Some(Level::at::<39>()));
}

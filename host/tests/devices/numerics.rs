//! Kernels are prepared with the rounding that the session allows for products.

use devbay_host::internals::core::kernel::Numerics;
use devbay_host::internals::core::program::text;
use devbay_host::{Model, PlanOptions, Policy, Requirements, Runtime, Session, Tensor};

const PROGRAM: &str = r#"devbay-program 1

program "tells"(%x: i64[1]) {
  %y: i64[1] = test.Numerics@1(%x) as "numerics"
  return %y
}
"#;

#[test]
fn kernels_are_told_what_may_be_rounded() {
    let linked = vec![crate::adder::devbay_entry::PLUGIN];
    let runtime = Runtime::builder().link_all(linked).build().expect("a runtime");
    let device = runtime.choose(&Policy::Auto, &Requirements::default()).expect("a device").device;
    let model = Model::from_program(text::parse(PROGRAM).expect("a program"));
    let told = |plans: PlanOptions| {
        let session = Session::with_options(&model, &device, plans).expect("a session");
        let x = Tensor::from_elements(&[1], &[0i64]).expect("a tensor");
        let y = session.run(&[("x", &x)]).expect("a run");
        y[0].elements::<i64>().expect("an integer")[0]
    };
    assert_eq!(told(PlanOptions::default()), 0, "nothing unless it is asked for");
    for (numerics, code) in [(Numerics::Tf32, 1), (Numerics::F16, 2), (Numerics::Bf16, 4)] {
        assert_eq!(told(PlanOptions { numerics, ..PlanOptions::default() }), code, "{numerics:?}");
    }
}

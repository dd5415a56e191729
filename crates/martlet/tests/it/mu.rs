//! The engine `mu`, by the builder's word.

use martlet::config::EngineKind;
use martlet::{CallError, Replica, Role};

use crate::cluster::{Text, cluster, threads};

#[test]
fn the_longest_command_takes_effect_and_a_longer_one_is_refused_with_the_limit() {
    let builder = Replica::builder().cluster(cluster("mu-long", 1)).node(0).engine(EngineKind::Mu).threads(threads());
    let replica = builder.start(Text::default()).expect("it starts");
    assert!(replica.roles().any(|change| change.role == Role::Leader), "who is alone leads");
    let Err(CallError::TooLong { bytes, limit }) = replica.propose(&[0; 1 << 20]) else { panic!("a quarter of the log is less") };
    assert_eq!(bytes, 1 << 20);
    assert_eq!(replica.propose(&vec![0; limit + 1]), Err(CallError::TooLong { bytes: limit + 1, limit }));
    assert_eq!(replica.propose(&vec![1; limit]), Ok(limit.to_string().into_bytes()), "what was refused had no effect");
    assert_eq!(replica.read(|text| text.0.len()), Ok(limit));
}

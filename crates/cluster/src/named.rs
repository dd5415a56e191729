//! Values on the command line that have names.

use clap::builder::{PossibleValue, TypedValueParser};
use martlet_node::config::{DurabilityKind, EngineKind, FabricKind};
use rustix::process::Signal;

use crate::directory::engine_of_a_server;
use crate::process::{signal_by_name, signal_names};

/// A parser of values that have names, for `value_parser`. Help texts and completions offer the names, and what is refused is refused in the words of `parser`.
#[derive(Clone, Debug)]
struct Named<P> {
    names: Vec<&'static str>,
    parser: P,
}

fn named<P: TypedValueParser>(names: impl IntoIterator<Item = &'static str>, parser: P) -> impl TypedValueParser<Value = P::Value> {
    Named { names: names.into_iter().collect(), parser }
}

impl<P: TypedValueParser> TypedValueParser for Named<P> {
    type Value = P::Value;

    fn parse_ref(&self, command: &clap::Command, argument: Option<&clap::Arg>, value: &std::ffi::OsStr) -> Result<P::Value, clap::Error> {
        self.parser.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}

/// An engine.
pub fn engine() -> impl TypedValueParser<Value = EngineKind> {
    named(EngineKind::ALL.map(EngineKind::name), str::parse::<EngineKind>)
}

/// An engine that an unmodified server can be replicated by.
pub fn server_engine() -> impl TypedValueParser<Value = EngineKind> {
    let of_servers = EngineKind::ALL.into_iter().filter(|kind| kind.traits().executes_on_commit);
    named(of_servers.map(EngineKind::name), engine_of_a_server)
}

/// A fabric.
pub fn fabric() -> impl TypedValueParser<Value = FabricKind> {
    named(FabricKind::ALL.map(FabricKind::name), str::parse::<FabricKind>)
}

/// What an acknowledged request outlives.
pub fn durability() -> impl TypedValueParser<Value = DurabilityKind> {
    named(DurabilityKind::ALL.map(DurabilityKind::name), str::parse::<DurabilityKind>)
}

/// A signal. It may also be given with `SIG`, or by its number.
pub fn signal() -> impl TypedValueParser<Value = Signal> {
    named(signal_names(), signal_by_name)
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    /// Checks that a parser takes the names that it offers, and nothing of that name that it does not.
    fn check<P: TypedValueParser>(parser: &P, said: &str) {
        let command = clap::Command::new("x");
        let argument = clap::Arg::new("flag").long("flag").num_args(1);
        let parse = |value: &str| parser.parse_ref(&command, Some(&argument), value.as_ref()).map(|_| ());
        let names: Vec<String> = parser.possible_values().expect("it has names").map(|value| value.get_name().to_owned()).collect();
        assert!(names.len() > 2, "{names:?}");
        names.iter().for_each(|name| parse(name).expect("an offered name is allowed"));
        let refused = parse("foo").expect_err("there is none of this name");
        assert_eq!(refused.kind(), ErrorKind::ValueValidation);
        assert!(
            refused.to_string().starts_with("error: invalid value 'foo' for '--flag <flag>': ") && refused.to_string().contains(said),
            "{refused}"
        );
        names.iter().for_each(|name| assert!(refused.to_string().contains(name.as_str()), "{refused}"));
    }

    #[test]
    fn what_is_offered_is_taken_and_what_is_refused_is_told_what_is_offered() {
        check(&engine(), "allowed are primary-backup, ");
        check(&server_engine(), "there is no engine \"foo\"; allowed for a server are ");
        check(&fabric(), "the fabric is \"foo\"; allowed are ");
        check(&durability(), "the durability is \"foo\"; allowed are memory, ");
        check(&signal(), "unknown signal; allowed are HUP, ");
    }
}

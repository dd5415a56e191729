//! The words of a request, where they lie in the buffer that they came in.

/// One argument's place in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// The place of `len` bytes from `start` on. No input buffer reaches 4 GiB.
    #[inline]
    pub fn new(start: usize, len: usize) -> Span {
        Span { start: start as u32, len: len as u32 }
    }
}

/// A request: its name and its arguments, none of them copied.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// The arguments that lie at `spans` in `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8], spans: &'a [Span]) -> Args<'a> {
        Args { bytes, spans }
    }

    /// How many there are, the command's name included.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether the request is empty: a blank line, or an array of none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at `i`; 0 is the command's name.
    ///
    /// # Panics
    /// When there is none: the command table's arity is checked before a handler runs.
    #[inline]
    pub fn at(&self, i: usize) -> &'a [u8] {
        let span = self.spans[i];
        &self.bytes[span.start as usize..][..span.len as usize]
    }

    /// The argument at `i`, if there is one.
    #[inline]
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        (i < self.spans.len()).then(|| self.at(i))
    }

    /// Whether the argument at `i` is `word` in whatever case.
    #[inline]
    pub fn is(&self, i: usize, word: &str) -> bool {
        self.get(i).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// The arguments from `i` on.
    #[inline]
    pub fn from(&self, i: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let this = *self;
        (i.min(this.len())..this.len()).map(move |i| this.at(i))
    }

    /// The request that its arguments from `i` on make.
    pub fn without(&self, i: usize) -> Args<'a> {
        Args { bytes: self.bytes, spans: &self.spans[i.min(self.len())..] }
    }

    /// The bytes of all of them.
    pub fn total_bytes(&self) -> usize {
        self.spans.iter().map(|s| s.len as usize).sum()
    }
}

/// A request that owns its bytes, for those that wait: the commands of a transaction.
#[derive(Clone, Debug, Default)]
pub struct OwnedArgs {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

impl OwnedArgs {
    /// A copy of `args`.
    pub fn copy(args: Args<'_>) -> OwnedArgs {
        let mut owned = OwnedArgs { bytes: Vec::with_capacity(args.total_bytes()), spans: Vec::with_capacity(args.len()) };
        for arg in args.from(0) {
            owned.spans.push(Span::new(owned.bytes.len(), arg.len()));
            owned.bytes.extend_from_slice(arg);
        }
        owned
    }

    /// The request.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.spans)
    }

    /// What it takes of the heap, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.spans.capacity() * size_of::<Span>()
    }
}

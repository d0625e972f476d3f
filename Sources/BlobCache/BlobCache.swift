/// placeholder
public final class BlobCache: Sendable {}

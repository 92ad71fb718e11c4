"""What a running job offers over HTTP, and where its commands find it."""

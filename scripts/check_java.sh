#!/usr/bin/env bash
# Exits 0 when the Java that Spark would start is 17 or newer; otherwise says what to install and exits 1.
# Spark takes $JAVA_HOME/bin/java when JAVA_HOME is set, and `java` from the PATH when it is not.
set -euo pipefail

needed=17

advise() {
    cat >&2 <<TEXT
$1
Tidegate runs on Spark, which needs Java $needed or newer (a headless runtime is enough). Install it with:
  Debian/Ubuntu:  sudo apt-get install openjdk-17-jre-headless
                  export JAVA_HOME=/usr/lib/jvm/java-17-openjdk-\$(dpkg --print-architecture)
  Fedora:         sudo dnf install java-21-openjdk-headless        (older releases: java-17-openjdk-headless)
                  export JAVA_HOME=/usr/lib/jvm/jre-21-openjdk     (or jre-17-openjdk)
  macOS:          brew install openjdk@17
                  export JAVA_HOME="\$(brew --prefix openjdk@17)/libexec/openjdk.jdk/Contents/Home"
Then run the command again. (JAVA_HOME is only needed when another, older Java comes first.)
TEXT
    exit 1
}

if [ -n "${JAVA_HOME:-}" ]; then
    java="$JAVA_HOME/bin/java"
    [ -x "$java" ] || advise "JAVA_HOME is set to '$JAVA_HOME', but there is no executable '$java'."
else
    java="$(command -v java || true)"
    [ -n "$java" ] || advise "No Java found: JAVA_HOME is not set and there is no 'java' on the PATH."
fi

# First line looks like: openjdk version "17.0.15" 2025-04-15, or version "1.8.0_392" for Java 8. On macOS, /usr/bin/java
# exists without a Java behind it and only fails when it is run.
output="$("$java" -version 2>&1 || true)"
version="$(printf '%s\n' "$output" | sed -nE 's/.*version "([0-9]+)(\.([0-9]+))?.*/\1 \3/p' | head -n 1)"
read -r major minor <<<"${version:-0 0}"
if [ "$major" = 1 ]; then
    major="${minor:-0}"
fi

if [ "$major" -eq 0 ]; then
    advise "'$java -version' does not answer with a version: $(printf '%s' "$output" | head -n 1)"
elif [ "$major" -lt "$needed" ]; then
    advise "'$java' is Java $major: too old."
fi

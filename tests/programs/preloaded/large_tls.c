/* Preloaded: more thread-local storage than a small stack holds, as large programs bring along. */
__thread char large_tls[3 << 20] __attribute__((tls_model("initial-exec")));

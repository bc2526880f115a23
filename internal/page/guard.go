package page

import (
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
)

// policy lets a page use nothing but what this server sends, and nothing inline.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guarded answers requests that may be answered. Each answer, also a refusal, forbids what a
// page of this server never does.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		switch {
		case !s.isOwnHost(r):
			// Another name that leads here may be that of a site whose scripts would then read the page.
			http.Error(w, "this name is not known to be one of this host: use localhost or its address, "+
				"or start reaper with --ui-host "+hostName(r.Host), http.StatusMisdirectedRequest)
		case isFromAnotherSite(r):
			http.Error(w, "the page cannot be embedded in another site", http.StatusForbidden)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "the page only shows: commands change things", http.StatusMethodNotAllowed)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isFromAnotherSite reports whether a script or an element of another site has sent the request.
// It cannot read the answer, but it could take streams away. A link leads here as usual.
func isFromAnotherSite(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate"
}

// isOwnHost reports whether the Host of a request is a name or an address of this host. Ports
// do not count: kubectl port-forward and containers change them.
func (s *Server) isOwnHost(r *http.Request) bool {
	name := hostName(r.Host)
	if ip := net.ParseIP(name); ip != nil {
		if ip.IsLoopback() {
			return true
		}
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		return local != nil && hostName(local.String()) == ip.String() || slices.Contains(s.hosts, ip.String())
	}
	return slices.Contains(s.hosts, name)
}

// hostName returns a host without its port, in lower case.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// ownHosts lists the names of this host.
func ownHosts(more []string) []string {
	hosts := []string{"localhost"}
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, strings.ToLower(name))
	}
	for _, m := range more {
		hosts = append(hosts, hostName(m))
	}
	return hosts
}

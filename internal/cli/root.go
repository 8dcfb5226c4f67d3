package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/client"
)

// defaultAddr is where poolmgrd listens unless it is told otherwise.
const defaultAddr = "127.0.0.1:7070"

// app is one run of the program: its streams, its global flags and its connection.
type app struct {
	streams
	build Build

	addr, namespace, output      string
	tlsCA, tlsCert, tlsKey, auth string
	timeout                      time.Duration // of one call

	conn  *client.Client // nil until the first call
	began bool           // a command's own code has begun to run
}

// root makes the tree of commands.
func (a *app) root(getenv func(string) string) *cobra.Command {
	root := group("poolmgrctl", "Claim warm microVMs, and look after the pools that keep them",
		a.poolCommands(), a.leaseCommands(), a.vmCommands(), a.hostCommands(), a.eventCommands(),
		a.rolloutCommands(), a.versionCommand())
	root.Long = "poolmgrctl talks to poolmgrd, which keeps pools of booted, idle microVMs and hands them out on leases.\n\n" +
		"Results go to stdout, progress to stderr. Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 timed out waiting;\n" +
		"lease exec and lease run exit with the code of the command they ran."
	root.SilenceErrors, root.SilenceUsage = true, true
	root.TraverseChildren = true // --timeout before a command is that of a call, after "wait" that of the waiting
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	a.globalFlags(root, getenv)
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return a.checkGlobals() }
	a.markBegin(root)
	return root
}

func (a *app) globalFlags(root *cobra.Command, getenv func(string) string) {
	addr := defaultAddr
	if env := getenv("POOLMGR_ADDR"); env != "" {
		addr = env
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.addr, "addr", addr, "where poolmgrd listens: host:port (TLS unless it is loopback), http://host:port for plain text; also POOLMGR_ADDR")
	flags.StringVarP(&a.namespace, "namespace", "n", "default", "namespace of pools")
	flags.StringVarP(&a.output, "output", "o", "table", "output: "+strings.Join(outputs, ", "))
	flags.StringVar(&a.tlsCA, "tls-ca", "", "file of the certificate authorities to trust (PEM)")
	flags.StringVar(&a.tlsCert, "tls-cert", "", "file of the client certificate to show (PEM)")
	flags.StringVar(&a.tlsKey, "tls-key", "", "file of the client certificate's key (PEM)")
	flags.StringVar(&a.auth, "token", "", "bearer token; better given as POOLMGR_TOKEN, since other users see command lines")
	flags.DurationVar(&a.timeout, "timeout", client.DefaultCallTimeout, "limit of each call; a claim's --wait comes on top")
	a.auth = getenv("POOLMGR_TOKEN") // not as the flag's default, which --help prints
}

func (a *app) checkGlobals() error {
	switch {
	case !slices.Contains(outputs, a.output):
		return usagef("unknown output %q: use one of %s", a.output, strings.Join(outputs, ", "))
	case a.timeout <= 0:
		return usagef("--timeout %v: it must be above 0", a.timeout)
	case a.namespace == "":
		return usagef("--namespace is empty")
	case (a.tlsCert == "") != (a.tlsKey == ""):
		return usagef("--tls-cert and --tls-key go together")
	}
	return nil
}

// markBegin lets run tell what a command did from what cobra refused.
func (a *app) markBegin(c *cobra.Command) {
	if work := c.RunE; work != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			a.began = true
			return work(c, args)
		}
	}
	for _, sub := range c.Commands() {
		a.markBegin(sub)
	}
}

// group is a command that only holds others.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			sentence := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
			if like := c.SuggestionsFor(args[0]); len(like) > 0 {
				sentence += fmt.Sprintf("; did you mean %s?", strings.Join(like, " or "))
			}
			return usagef("%s (see %s --help)", sentence, c.CommandPath())
		},
	}
	c.SuggestionsMinimumDistance = 2
	c.AddCommand(subs...)
	return c
}

// client connects, once.
func (a *app) client() (*client.Client, error) {
	if a.conn != nil {
		return a.conn, nil
	}
	options := []client.Option{client.WithToken(a.auth), client.WithCallTimeout(a.timeout), client.WithLogger(slog.New(teller{a}))}
	if a.tlsCA != "" || a.tlsCert != "" {
		config, err := a.tlsConfig()
		if err != nil {
			return nil, err
		}
		options = append(options, client.WithTLS(config))
	}
	conn, err := client.Dial(a.addr, options...)
	if err != nil {
		return nil, usageError{err}
	}
	a.conn = conn
	return conn, nil
}

func (a *app) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.tlsCA != "" {
		pem, err := os.ReadFile(a.tlsCA)
		if err != nil {
			return nil, fmt.Errorf("read --tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, failf(codes.InvalidArgument, "--tls-ca %s holds no certificate in PEM", a.tlsCA)
		}
	}
	if a.tlsCert != "" {
		pair, err := tls.LoadX509KeyPair(a.tlsCert, a.tlsKey)
		if err != nil {
			return nil, fmt.Errorf("read --tls-cert and --tls-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func (a *app) close() {
	if a.conn != nil {
		_ = a.conn.Close() // the process ends
	}
}

// ref names a pool in the namespace of the flags.
func (a *app) ref(name string) *pb.PoolRef { return &pb.PoolRef{Name: name, Namespace: a.namespace} }

// filter is the pool of an optional --pool flag: nil means every pool.
func (a *app) filter(name string) *pb.PoolRef {
	if name == "" {
		return nil
	}
	return a.ref(name)
}

// onlyNamespace tells whether a list of every pool is to be narrowed to -n, which the API cannot.
func (a *app) onlyNamespace(c *cobra.Command, pool string) bool {
	return pool == "" && c.Flags().Changed("namespace")
}

// exactly demands arguments by name.
func exactly(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return fmt.Errorf("%s takes %s, not %d arguments (see %s --help)", c.CommandPath(), strings.Join(names, " "), len(args), c.CommandPath())
	}
}

// none demands that there are no arguments.
func none(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, not %q (see %s --help)", c.CommandPath(), args, c.CommandPath())
	}
	return nil
}

// within refuses durations that make no sense.
func within(flag string, d time.Duration) error {
	if d < 0 {
		return usageError{errors.New("--" + flag + " is negative")}
	}
	return nil
}

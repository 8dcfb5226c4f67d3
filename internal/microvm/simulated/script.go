package simulated

import (
	"io"
	"strings"
)

// condition says when a step of a script runs, by the code of the last one.
type condition int

const (
	always condition = iota
	onSuccess
	onFailure
)

// step is one command of a script.
type step struct {
	when  condition
	words []string
	// opaque: it uses something that this shell does not understand (a pipe, a
	// subshell, an input file, the background), so it is not run at all.
	opaque bool
	// outTo and errTo say where its output goes.
	outTo, errTo target
}

// target is a place for output.
type target int

const (
	unchanged target = iota
	toStdout
	toStderr
	discarded // a file of the guest, which nobody will read
)

func (s step) redirect(stdout, stderr io.Writer) (out, err io.Writer) {
	pick := func(t target, own io.Writer) io.Writer {
		switch t {
		case toStdout:
			return stdout
		case toStderr:
			return stderr
		case discarded:
			return io.Discard
		default:
			return own
		}
	}
	return pick(s.outTo, stdout), pick(s.errTo, stderr)
}

// parseScript understands lists of simple commands (`;`, `&&`, `||`, new lines),
// quotes, and output redirections. There are no variables and no expansions.
func parseScript(line string) []step {
	var steps []step
	current := step{}
	flush := func(next condition) {
		if len(current.words) > 0 || current.opaque {
			steps = append(steps, current)
		}
		current = step{when: next}
	}
	tokens := scan(line)
	for i := 0; i < len(tokens); i++ {
		switch t := tokens[i]; {
		case !t.operator:
			current.words = append(current.words, t.text)
		case t.text == ";" || t.text == "\n":
			flush(always)
		case t.text == "&&":
			flush(onSuccess)
		case t.text == "||":
			flush(onFailure)
		case strings.Contains(t.text, ">"):
			i += current.redirectTo(t.text, tokens[i+1:])
		default:
			current.opaque = true
		}
	}
	flush(always)
	return steps
}

// redirectTo notes a redirection and says how many of the following tokens it
// took as its file name.
func (s *step) redirectTo(operator string, following []token) (taken int) {
	to := discarded
	switch {
	case strings.HasSuffix(operator, ">&1"):
		to = toStdout
	case strings.HasSuffix(operator, ">&2"):
		to = toStderr
	case len(following) > 0 && !following[0].operator:
		taken = 1
	default:
		s.opaque = true // a redirection to nowhere
	}
	if strings.HasPrefix(operator, "2") {
		s.errTo = to
	} else {
		s.outTo = to
	}
	return taken
}

// token is a word with its quotes resolved, or an operator.
type token struct {
	text     string
	operator bool
}

// operators, longer ones first: the first that fits is taken.
var operators = []string{
	"1>&2", "2>&1", ">&1", ">&2", "1>>", "2>>", "1>", "2>", ">>", ">",
	"&&", "||", ";", "\n", "|", "&", "<", "(", ")",
}

func scan(line string) []token {
	var tokens []token
	for line != "" {
		if line[0] == ' ' || line[0] == '\t' {
			line = line[1:]
			continue
		}
		if line[0] == '#' {
			if _, rest, more := strings.Cut(line, "\n"); more {
				line = "\n" + rest
				continue
			}
			break
		}
		if op := operatorAt(line); op != "" {
			tokens = append(tokens, token{text: op, operator: true})
			line = line[len(op):]
			continue
		}
		var word string
		word, line = scanWord(line)
		tokens = append(tokens, token{text: word})
	}
	return tokens
}

func operatorAt(line string) string {
	for _, op := range operators {
		if strings.HasPrefix(line, op) {
			return op
		}
	}
	return ""
}

// scanWord takes one word from the line, which does not start with a blank or
// an operator. A quote that is never closed reaches to the end.
func scanWord(line string) (word, rest string) {
	var b strings.Builder
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case ' ', '\t', '\n', ';', '&', '|', '>', '<', '(', ')':
			return b.String(), line[i:]
		case '\\':
			if i++; i < len(line) {
				b.WriteByte(line[i])
			}
		case '\'', '"':
			inside, length := quoted(line[i:])
			b.WriteString(inside)
			i += length - 1
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), ""
}

// quoted resolves the quotation that the text starts with, and says how long it
// is with its quotes. In double quotes a backslash keeps a quote or a backslash.
func quoted(text string) (inside string, length int) {
	var b strings.Builder
	quote := text[0]
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == quote:
			return b.String(), i + 1
		case quote == '"' && text[i] == '\\' && i+1 < len(text) && (text[i+1] == '"' || text[i+1] == '\\'):
			i++
			b.WriteByte(text[i])
		default:
			b.WriteByte(text[i])
		}
	}
	return b.String(), len(text)
}
